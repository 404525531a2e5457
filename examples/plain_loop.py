"""STC in a training loop of your own: lines of handwritten digits, half of the digits missing from every transcript.

    pip install 'starseq[images]'
    python examples/plain_loop.py

STCLoss stands where torch.nn.CTCLoss would. It finds out by itself how much is missing.
"""

import argparse
import random

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

from starseq import STCLoss

BLANK = 0


def line(digits: np.ndarray, labels: np.ndarray, chance: random.Random) -> tuple[torch.Tensor, list[int], list[int]]:
    """A row of 3 to 8 digits: its pixel columns (T, 8), all its labels, and those that somebody wrote down."""
    chosen = [chance.randrange(len(digits)) for _ in range(chance.randint(3, 8))]
    columns = np.concatenate([digits[i].T for i in chosen]) / 16
    full = [int(labels[i]) + 1 for i in chosen]  # 0 is the blank
    return torch.tensor(columns, dtype=torch.float32), full, [label for label in full if chance.random() < 0.5]


def collate(lines: list) -> tuple[torch.Tensor, ...]:
    pad = torch.nn.utils.rnn.pad_sequence
    x = pad([columns for columns, _, _ in lines], batch_first=True)
    targets = pad([torch.tensor(known, dtype=torch.int64) for _, _, known in lines], batch_first=True)
    frames = torch.tensor([len(columns) // 2 for columns, _, _ in lines])
    return x, targets, frames, torch.tensor([len(known) for _, _, known in lines])


class Model(nn.Module):
    def __init__(self, width: int = 64, tokens: int = 11) -> None:
        super().__init__()
        self.first = nn.Conv1d(8, width, 8, stride=2, padding=3)
        self.second = nn.Conv1d(width, width, 5, padding=2)
        self.head = nn.Linear(width, tokens)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.second(self.first(x.transpose(1, 2)).relu()).relu().transpose(1, 2))


def read(model: Model, columns: torch.Tensor) -> list[int]:
    """Greedy decoding, as for CTC: the best token of every frame, without repeats and blanks."""
    best = model(columns[None])[0].argmax(dim=1).unique_consecutive()
    return best[best != BLANK].tolist()


def main(steps: int) -> float:
    torch.manual_seed(0)
    chance, digits = random.Random(0), load_digits()
    model, criterion = Model(), STCLoss(blank=BLANK, batch_first=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(1, steps + 1):
        batch = [line(digits.images[:1500], digits.target[:1500], chance) for _ in range(32)]
        x, targets, frames, lengths = collate(batch)
        loss = criterion(model(x), targets, frames, lengths)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 100 == 0:
            print(f"step {step}: loss {loss.item():.2f}, star's weight {criterion.penalty().exp().item():.2f}")
    tests = [line(digits.images[1500:], digits.target[1500:], chance) for _ in range(100)]
    right = sum(read(model, columns) == full for columns, full, _ in tests)
    print(f"read without error: {right} of {len(tests)} lines that the model never saw")
    return right / len(tests)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=600)
    main(parser.parse_args().steps)
