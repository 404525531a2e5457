"""STC in a LightningModule. The loss is a submodule, so a checkpoint has what it has learned of its star.

    pip install starseq lightning
    python examples/lightning_module.py

Every token is a random vector that lasts for four frames, with noise. Half of the tokens are missing from every transcript.
"""

import argparse

import lightning
import torch
from torch import nn

from starseq import STCLoss

TOKENS, FEATURES, LASTS, LENGTH = 12, 16, 4, 10
SHAPES = torch.randn(TOKENS, FEATURES, generator=torch.Generator().manual_seed(0))
SHAPES[0] = 0  # the blank is silence


def utterance(seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(T, FEATURES), all tokens, and those that somebody wrote down. Between two tokens there is silence."""
    random = torch.Generator().manual_seed(seed)
    full = torch.randint(1, TOKENS, (LENGTH,), generator=random)
    frames = torch.stack((full, torch.zeros_like(full)), 1).flatten().repeat_interleave(LASTS)
    x = SHAPES[frames] + 0.5 * torch.randn(len(frames), FEATURES, generator=random)
    return x, full, full[torch.rand(LENGTH, generator=random) < 0.5]


def collate(batch: list) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    x = torch.stack([x for x, _, _ in batch])
    lengths = torch.tensor([len(known) for _, _, known in batch])
    targets = torch.nn.utils.rnn.pad_sequence([known for _, _, known in batch], batch_first=True)
    return x, targets, torch.full((len(x),), x.shape[1]), lengths


class Recogniser(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(FEATURES, 64), nn.ReLU(), nn.Linear(64, TOKENS))
        self.criterion = STCLoss(blank=0, batch_first=True)

    def training_step(self, batch: tuple, batch_index: int) -> torch.Tensor:
        x, targets, frames, lengths = batch
        loss = self.criterion(self.net(x), targets, frames, lengths)
        self.log_dict({"loss": loss, "star": self.criterion.penalty().exp()}, prog_bar=True)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=3e-3)

    def read(self, x: torch.Tensor) -> list[int]:
        best = self.net(x).argmax(dim=1).unique_consecutive()
        return best[best != 0].tolist()


def main(steps: int) -> float:
    torch.manual_seed(0)
    loader = torch.utils.data.DataLoader([utterance(n) for n in range(640)], 32, shuffle=True, collate_fn=collate)
    model = Recogniser()
    trainer = lightning.Trainer(
        max_steps=steps, max_epochs=-1, accelerator="cpu", logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(model, loader)
    tests = [utterance(10_000 + n) for n in range(100)]
    right = sum(model.read(x) == full.tolist() for x, full, _ in tests) / len(tests)
    print(f"read without error: {100 * right:.0f} % of new utterances, of {LENGTH} tokens each")
    return right


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=400)
    main(parser.parse_args().steps)
