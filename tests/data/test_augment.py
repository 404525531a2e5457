"""Augmentation: the published amounts, and a pure function of (seed, epoch, id)."""

import math

import pytest
import torch

from starseq.data.augment import RandomProjective, SpecAugment, homography
from starseq.data.features import LogMel
from starseq.data.seeds import generator

NOW = {"seed": 0, "epoch": 1, "step": 10**6}


def test_generator_is_a_function_of_its_key():
    draw = lambda *key: torch.rand(3, generator=generator(*key)).tolist()  # noqa: E731
    assert draw(1, 2, "a") == draw(1, 2, "a")
    keys = [(1, 2, "a"), (2, 1, "a"), (1, 2, "b"), (1, "2", "a"), (12, "a"), (1, 2), ("1\x002", "a")]
    assert len({tuple(draw(*key)) for key in keys}) == len(keys)


def test_spec_augment_defaults_are_the_published_settings():
    a = SpecAugment()
    assert (a.freq_masks, a.freq_width, a.time_masks, a.time_width, a.time_ratio) == (2, 30, 10, 50, 0.1)
    assert a.start_step == 32_000


def test_spec_augment_masks_whole_bands_and_frames_within_bounds():
    x = torch.ones(64, 700, 80)
    lengths = [700] * 32 + [200] * 32
    y = SpecAugment()(x, lengths, [f"u{i}" for i in range(64)], **NOW)
    assert torch.equal(x, torch.ones_like(x))  # the input stays
    runs = []
    for row, length in zip(y, lengths, strict=True):
        inside = row[:length] == 0
        time, freq = inside.all(dim=1), inside.all(dim=0)
        assert torch.equal(inside, time[:, None] | freq[None])  # nothing but bands and frames
        assert freq.sum() <= 60
        assert time.sum() <= 10 * min(50, length // 10)
        assert row[length:].eq(1).all()  # padding is not touched
        runs.append(int(time.sum()))
    # Ten masks of mean width 25 cover about 700 (1 - (1 - 25/700)^10) = 213 frames.
    assert 150 < sum(runs[:32]) / 32 < 270


def test_spec_augment_starts_late():
    x = torch.ones(1, 100, 80)
    a = SpecAugment(start_step=5)
    assert a(x, [100], ["u"], seed=0, epoch=0, step=4) is x
    assert not torch.equal(a(x, [100], ["u"], seed=0, epoch=0, step=5), x)


def warps(**settings: float) -> SpecAugment:
    """No masks."""
    return SpecAugment(freq_masks=0, time_masks=0, start_step=0, **settings)


@pytest.mark.parametrize(("bands", "top"), [(80, 7600.0), (40, 3600.0)])
def test_in_a_vocal_tract_of_another_length_all_frequencies_are_multiplied_alike(bands, top):
    """Features whose value is the band's frequency: afterwards it is that of the band that is heard in its place."""
    mel = lambda hertz: 1127 * math.log(1 + hertz / 700)  # noqa: E731
    centres = torch.linspace(mel(20), mel(top), bands + 2, dtype=torch.float64)[1:-1]
    hertz = 700 * torch.expm1(centres / 1127)
    x = hertz.float().expand(100, 3, bands)
    y = warps(tract=0.15, top=top)(x, [3] * 100, [f"u{i}" for i in range(100)], **NOW)
    factors = (y[:, 0] / x[:, 0])[:, bands // 2]
    assert 0.85 < factors.min() < 0.88
    assert 1.12 < factors.max() < 1.15
    assert abs(factors.mean() - 1) < 0.03
    inside = factors[:, None] * hertz
    expected = inside.clamp(hertz[0], hertz[-1]).float()  # what lies outside of the bands is taken for the outermost
    assert torch.allclose(y, expected[:, None].expand_as(y), rtol=4e-3)
    assert torch.equal(x[0, 0], hertz.float())  # the input stays


@pytest.mark.parametrize("step", [12.5, 40.0])
def test_speech_is_now_faster_now_slower_and_as_long_as_before(step):
    """Features whose value is the frame's number: afterwards it is that of the frame that is heard in its place."""
    lengths = [400] * 150 + [120] * 150
    x = torch.arange(400.0)[None, :, None].expand(300, 400, 4)
    y = warps(time_warp=3.0, warp_step=step)(x, lengths, [f"u{i}" for i in range(300)], **NOW)
    assert torch.equal(y, y[:, :, :1].expand_as(y))  # bands stay where they are
    moved = (y - x)[:, :, 0]
    for rows, length in ((moved[:150], 400), (moved[150:], 120)):
        assert abs(rows[:, 20 : length - 20].std() - 3) < 0.2
        assert abs(rows[:, 20 : length - 20].mean()) < 0.5
        assert torch.equal(rows[:, length:], torch.zeros_like(rows[:, length:]))  # padding is not touched
    assert float(y.min()) >= 0
    assert float(y[150:, :120].max()) <= 119  # nothing is heard from beyond the end
    for place in (slice(20, 100), slice(300, 380)):
        rate = moved[:150].diff(dim=1)[:, place]
        assert 1 < rate.std() * step < 6  # about 3 / step
    assert rate.diff(dim=1).abs().max() < 80 / step**2  # it changes slowly


def test_warps_of_a_long_batch_are_those_of_the_utterance_alone_whatever_its_padding_holds():
    x = torch.randn(3, 2000, 40, generator=torch.Generator().manual_seed(0))
    x[1, 700:], x[2, 450:] = math.nan, 1e9
    augment, lengths, ids = warps(tract=0.1, time_warp=3, warp_step=20), [2000, 700, 450], ["a", "b", "c"]
    y = augment(x, lengths, ids, **NOW)
    for b, length in enumerate(lengths):
        alone = augment(x[b : b + 1, :length], [length], ids[b : b + 1], **NOW)
        assert torch.equal(y[b, :length], alone[0])
        assert torch.equal(y[b, length:].nan_to_num(7), x[b, length:].nan_to_num(7))
    assert y[1, :700].isfinite().all()
    assert y[2, :450].abs().max() < 6


@pytest.mark.parametrize(
    ("dtype", "error"), [(torch.bfloat16, 1e-2), (torch.float16, 1e-3), (torch.float32, 1e-6), (torch.float64, 0.0)]
)
def test_warps_keep_the_precision_of_the_features(dtype, error):
    x = torch.rand(2, 60, 40, generator=torch.Generator().manual_seed(0)).to(dtype) + 1
    augment = warps(tract=0.1, time_warp=2)
    y, precise = augment(x, [60, 41], ["a", "b"], **NOW), augment(x.double(), [60, 41], ["a", "b"], **NOW)
    assert y.dtype == dtype
    assert precise.dtype == torch.float64
    assert torch.allclose(y.double(), precise, rtol=error, atol=0)
    assert not torch.equal(precise, precise.float().double())  # it has digits that float32 has not


def test_warps_wait_for_their_step_and_take_utterances_of_no_frames():
    x = torch.rand(2, 30, 20)
    late = SpecAugment(0, 0, 0, 0, start_step=5, tract=0.1, time_warp=2)
    assert late(x, [30, 0], ["a", "b"], seed=0, epoch=0, step=4) is x
    y = late(x, [30, 0], ["a", "b"], seed=0, epoch=0, step=5)
    assert not torch.equal(y[0], x[0])
    assert torch.equal(y[1], x[1])
    assert late(x[:, :0], [0, 0], ["a", "b"], **NOW).shape == (2, 0, 20)
    with pytest.raises(ValueError, match="lengths: 31 is more than the 30 frames of x"):
        late(x, [31, 0], ["a", "b"], **NOW)


def test_the_bands_end_where_those_of_the_features_do():
    assert SpecAugment().top == LogMel().top == 7600


def test_masks_lie_on_what_was_warped():
    x, ids = torch.rand(3, 90, 80, generator=torch.Generator().manual_seed(0)) + 1, ["a", "b", "c"]
    only = warps(tract=0.1, time_warp=2)(x, [90] * 3, ids, **NOW)
    both = SpecAugment(start_step=0, tract=0.1, time_warp=2)(x, [90] * 3, ids, **NOW)
    masks = SpecAugment(start_step=0)(x, [90] * 3, ids, **NOW) == 0
    assert torch.equal(both, only.masked_fill(masks, 0))  # where the masks lie does not depend on the warps


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"tract": 1.0}, "tract is at least 0 and less than 1; got 1.0"),
        ({"tract": -0.1}, "tract is at least 0 and less than 1; got -0.1"),
        ({"tract": math.nan}, "tract is at least 0 and less than 1; got nan"),
        ({"top": 20.0}, "top is above 20 Hz, and finite; got 20.0"),
        ({"warp_step": 0.0}, "warp_step is positive, and finite; got 0.0"),
        ({"warp_step": math.inf}, "warp_step is positive, and finite; got inf"),
        ({"time_warp": math.nan}, "time_warp is not negative, and finite; got nan"),
    ],
)
def test_bad_settings_of_warps(settings, message):
    with pytest.raises(ValueError) as error:  # noqa: PT011, the whole message is compared
        warps(**settings)
    assert str(error.value) == message


def batch(*widths: int, height: int = 32) -> torch.Tensor:
    x = torch.zeros(len(widths), max(widths), height)
    for row, width in zip(x, widths, strict=True):
        row[:width] = torch.rand(width, height, generator=torch.Generator().manual_seed(width))
    return x


@pytest.mark.parametrize(
    "augment",
    [
        SpecAugment(start_step=0),
        SpecAugment(0, 0, 0, 0, start_step=0, tract=0.2),
        SpecAugment(0, 0, 0, 0, start_step=0, time_warp=3, warp_step=12.5),
        RandomProjective(),
        RandomProjective(masks=3),
        RandomProjective(0, elastic=2, elastic_step=7.5),
        RandomProjective(8, masks=2, elastic=2),
    ],
)
def test_batch_order_and_padding_do_not_matter(augment):
    x = batch(120, 90, 40)
    y = augment(x, [120, 90, 40], ["a", "b", "c"], **NOW)
    alone = augment(x[1:2, :90], torch.tensor([90]), ["b"], **NOW)
    assert torch.allclose(y[1:2, :90], alone, atol=1e-4)
    turned = augment(x.flip(0), [40, 90, 120], ["c", "b", "a"], **NOW)
    assert torch.allclose(y, turned.flip(0), atol=1e-5)
    assert torch.equal(y, augment(x, [120, 90, 40], ["a", "b", "c"], **NOW))
    for other in ({"seed": 1}, {"epoch": 2}):
        assert not torch.allclose(y, augment(x, [120, 90, 40], ["a", "b", "c"], **{**NOW, **other}))
    assert not torch.allclose(y, augment(x, [120, 90, 40], ["d", "e", "f"], **NOW))
    with pytest.raises(ValueError, match="ids 1"):
        augment(x, [120, 90, 40], ["a"], **NOW)


@pytest.mark.parametrize(
    "augment", [SpecAugment(start_step=0, tract=0.1, time_warp=1), RandomProjective(masks=2, elastic=1)]
)
def test_an_empty_batch_stays_one(augment):
    assert augment(torch.zeros(0, 50, 32), [], [], seed=0, epoch=0, step=1).shape == (0, 50, 32)


def test_projective_keeps_the_ink_and_the_size():
    x = torch.zeros(200, 150, 32)
    x[:, 60:80, 12:20] = 1.0
    y = RandomProjective(16)(x, [150] * 200, [f"l{i}" for i in range(200)], **NOW)
    assert y.shape == x.shape
    assert float(y.min()) >= 0
    assert float(y.max()) <= 1
    mass = y.sum(dim=(1, 2)) / x[0].sum()
    # Shrunk or stretched, never pushed out of the picture. At 32 px, corners that move by 16 can shrink a lot.
    assert float(mass.min()) > 0.05
    assert 0.6 < float(mass.median()) < 1.2
    moved = (y - x).abs().amax(dim=(1, 2)) > 0.2
    assert moved.float().mean() > 0.95


def test_projective_blanks_stretches_of_columns_after_the_corners_have_moved():
    x, lengths, ids = batch(90, 70, 5) + 0.5, [90, 70, 5], ["a", "b", "c"]
    moved = RandomProjective(3)(x, lengths, ids, **NOW)
    both = RandomProjective(3, masks=9, mask_width=9)(x, lengths, ids, **NOW)
    blank = (both == 0).all(2) & ~(moved == 0).all(2)
    assert 0 < blank[0].sum() <= 9 * 9
    assert blank[1].any()
    assert not blank[2].any()  # a stretch is a tenth of the line at most: here none
    assert torch.equal(both[~blank], moved[~blank])


def test_projective_starts_late():
    x = batch(40)
    assert RandomProjective(start_step=5)(x, [40], ["a"], seed=0, epoch=0, step=4) is x
    assert not torch.equal(RandomProjective(start_step=5)(x, [40], ["a"], seed=0, epoch=0, step=5), x)


def test_projective_bounds():
    draws = [generator("map", i) for i in range(300)]
    maps = RandomProjective(16)._maps([100] * 300, 32, draws)
    corners = torch.tensor([[0, 0, 1], [100, 0, 1], [100, 32, 1], [0, 32, 1]], dtype=torch.float64)
    # The new picture's corners look at or beyond the old one's, and the denominator keeps its sign: no fold.
    w = torch.einsum("bij,kj->bki", maps, corners)[..., 2]
    assert (w > 0).all()
    assert torch.allclose(RandomProjective(0)._maps([100], 32, [generator(0)]), torch.eye(3, dtype=torch.float64))
    tiny = RandomProjective(16)(torch.rand(3, 1, 2), [1, 1, 0], ["a", "b", "c"], **NOW)
    assert torch.isfinite(tiny).all()


def places(augment: RandomProjective, width: int, height: int, ids: list[str]) -> torch.Tensor:
    """(2, B, W, H): where in the old image each pixel looks, as read off two ramps; wrong where that is near the edge."""
    along, across = torch.meshgrid(torch.arange(width) + 0.5, torch.arange(height) + 0.5, indexing="ij")
    ramps = [ramp.expand(len(ids), width, height) for ramp in (along, across)]
    return torch.stack([augment(ramp, [width] * len(ids), ids, **NOW) for ramp in ramps])


def test_without_elastic_nothing_changes():
    x, lengths, ids = batch(90, 70, 5), [90, 70, 5], ["a", "b", "c"]
    for settings in ({}, {"masks": 3}):
        y = RandomProjective(8, **settings)(x, lengths, ids, **NOW)
        assert torch.equal(y, RandomProjective(8, elastic=0.0, elastic_step=5.0, **settings)(x, lengths, ids, **NOW))
        assert not torch.equal(y, RandomProjective(8, elastic=0.5, **settings)(x, lengths, ids, **NOW))
    # The corners draw what they drew before there was such a field.
    first = RandomProjective(8)(batch(40), [40], ["a"], **NOW)
    assert float(first.double().sum()) == pytest.approx(513.6579, abs=1e-3)


@pytest.mark.parametrize("max_shift", [0, 4])
def test_elastic_field_is_the_spline_of_its_control_points(max_shift):
    width, height, step, elastic = 61, 40, 10, 1.5
    control = torch.randn(2, 61 // 10 + 4, 40 // 10 + 4, generator=generator(0, 1, "a elastic"), dtype=torch.float64)

    def weights(place: float) -> tuple[int, torch.Tensor]:
        k, t = divmod(place / step, 1)
        four = torch.tensor([(1 - t) ** 3, 3 * t**3 - 6 * t**2 + 4, -3 * t**3 + 3 * t**2 + 3 * t + 1, t**3])
        return int(k), (four / four.norm()).double()

    moved = places(RandomProjective(max_shift, elastic=elastic, elastic_step=step), width, height, ["a"])[:, 0]
    still = places(RandomProjective(max_shift), width, height, ["a"])[:, 0]
    # The field comes on top of where the corners' map looks.
    for u in range(10, 51, 4):
        for v in range(12, 29, 4):
            (i, p), (j, q) = weights(u + 0.5), weights(v + 0.5)
            expected = elastic * torch.einsum("cij,i,j->c", control[:, i : i + 4, j : j + 4], p, q)
            assert torch.allclose((moved - still)[:, u, v].double(), expected, atol=1e-3), (u, v)


@pytest.mark.parametrize(("elastic", "step"), [(1.0, 24.0), (2.0, 16.0), (2.0, 9.5)])
def test_elastic_field_has_its_standard_deviation_and_is_smooth(elastic, step):
    ids = [f"l{i}" for i in range(300)]
    still = places(RandomProjective(0), 80, 48, ids)
    field = (places(RandomProjective(0, elastic=elastic, elastic_step=step), 80, 48, ids) - still)[:, :, 12:-12, 12:-12]
    for axis in field:
        assert float(axis.mean()) == pytest.approx(0, abs=0.1 * elastic)
        assert float(axis.std()) == pytest.approx(elastic, rel=0.05)
        # The same at every place, on control points and between them.
        assert float(axis.std(dim=0).min()) > 0.8 * elastic
        assert float(axis.std(dim=0).max()) < 1.2 * elastic
    assert abs(float((field[0] * field[1]).mean())) < 0.1 * elastic**2  # the axes have numbers of their own
    # A slope has a standard deviation of sqrt((2 / 3) / (151 / 315)) = 1.18 steps, so a field like noise would fail.
    for dim in (2, 3):
        assert float(field.diff(dim=dim).std()) == pytest.approx(1.18 * elastic / step, rel=0.1)
        assert float(field.diff(n=2, dim=dim).abs().max()) < 15 * elastic / step**2


def test_elastic_moves_ink_and_keeps_the_rest_background():
    x, lengths, ids = torch.zeros(3, 60, 40), [60, 3, 1], ["a", "b", "c"]
    x[0, 30, 20] = x[1, 1] = x[2, 0] = 1.0
    # Controls this far apart move all of the image alike.
    y = RandomProjective(0, elastic=3, elastic_step=1e6)(x, lengths, ids, **NOW)
    looks = places(RandomProjective(0, elastic=3, elastic_step=1e6), 60, 40, ["a"])[:, 0, 30, 20]
    ink = torch.stack([y[0].sum(1) @ (torch.arange(60) + 0.5), y[0].sum(0) @ (torch.arange(40) + 0.5)])
    assert float(y[0].sum()) == pytest.approx(1, abs=1e-3)
    assert float((looks - torch.tensor([30.5, 20.5])).abs().max()) > 1
    # A pixel that looks further along shows ink that lay there: the ink goes the other way.
    assert torch.allclose(ink - torch.tensor([30.5, 20.5]), torch.tensor([30.5, 20.5]) - looks, atol=1e-3)
    for max_shift in (0, 16):
        narrow = RandomProjective(max_shift, elastic=3, elastic_step=2)(x, lengths, ids, **NOW)
        assert torch.isfinite(narrow).all()
        assert narrow[1, 3:].eq(0).all()
        assert narrow[2, 1:].eq(0).all()


def test_homography_takes_points_to_points():
    a = torch.tensor([[0, 0], [10, 1], [9, 8], [-1, 7]], dtype=torch.float64)
    b = torch.tensor([[1, 1], [12, 0], [10, 9], [0, 6]], dtype=torch.float64)
    h = homography(a, b)
    p = torch.cat((a, torch.ones(4, 1, dtype=torch.float64)), dim=1) @ h.T
    assert torch.allclose(p[:, :2] / p[:, 2:], b)


@pytest.mark.parametrize(
    ("augment", "setting"),
    [
        (SpecAugment, "time_masks"),
        (SpecAugment, "time_warp"),
        (RandomProjective, "max_shift"),
        (RandomProjective, "masks"),
        (RandomProjective, "elastic"),
    ],
)
def test_bad_settings(augment, setting):
    with pytest.raises(ValueError, match=f"{setting} is not negative.*; got -1"):
        augment(**{setting: -1})


@pytest.mark.parametrize("step", [0.0, -1.0, float("nan")])
def test_control_points_lie_apart(step):
    with pytest.raises(ValueError, match=f"elastic_step is positive; got {step}"):
        RandomProjective(elastic_step=step)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize(
    "augment",
    [
        SpecAugment(start_step=0),
        SpecAugment(0, 0, 0, 0, start_step=0, tract=0.2, time_warp=3, warp_step=12.5),
        RandomProjective(),
        RandomProjective(elastic=2, elastic_step=16),
    ],
)
def test_the_device_does_not_matter(augment):
    x, lengths, ids = batch(120, 90), [120, 90], ["a", "b"]
    there = augment(x.cuda(), torch.tensor(lengths).cuda(), ids, **NOW)
    assert there.is_cuda
    assert torch.allclose(there.cpu(), augment(x, lengths, ids, **NOW), atol=1e-4)


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("setting", ["max_shift", "elastic"])
def test_no_number_is_a_bad_setting(setting, value):
    with pytest.raises(ValueError, match=f"{setting} is not negative, and finite; got {value}"):
        RandomProjective(**{setting: value})
