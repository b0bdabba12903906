"""Reading recordings and writing subtitles: pure functions at their edges."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from mlxplatform.api.audio.render import _cue, clock
from tests.fixtures.tiny_whisper import tone
from workers.transcriber.sound import RATE, BadSound, load


@pytest.mark.parametrize("width", [1, 2, 3, 4])
@pytest.mark.parametrize(("rate", "channels"), [(16_000, 1), (44_100, 2), (8_000, 1), (48_000, 6)])
def test_pcm_of_every_kind_is_the_same_hum(tmp_path: Path, width: int, rate: int, channels: int) -> None:
    file = tmp_path / "x.wav"
    file.write_bytes(tone(0.5, rate=rate, channels=channels, width=width))
    samples = load(file)
    assert samples.dtype == np.float32 and abs(len(samples) - RATE / 2) <= 2
    assert 0.36 < np.abs(samples[200:-200]).max() < 0.44
    assert np.argmax(np.abs(np.fft.rfft(samples))) == pytest.approx(110, abs=1), "220 Hz in half a second"


@pytest.mark.parametrize("raw", [b"", b"RIFF", b"RIFF\0\0\0\0WAVE", tone(0.05), tone(1.0)[:60], b"\0" * 5000])
def test_what_is_no_recording_is_said_to_be_none(tmp_path: Path, raw: bytes) -> None:
    file = tmp_path / "x"
    file.write_bytes(raw)
    with pytest.raises(BadSound) as error:
        load(file)
    assert str(tmp_path) not in str(error.value)


def test_a_recording_that_breaks_off_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    file = tmp_path / "x.wav"
    file.write_bytes(tone(1.0)[:16_045])
    assert 7_900 < len(load(file)) < 8_100


@pytest.mark.parametrize(
    ("seconds", "shown"), [(0, "00:00:00,000"), (59.9996, "00:01:00,000"), (3725.25, "01:02:05,250"), (-1, "00:00:00,000")]
)
def test_times_of_subtitles(seconds: float, shown: str) -> None:
    assert clock(seconds, ",") == shown


def test_a_text_cannot_break_out_of_its_cue() -> None:
    cue = _cue(1, {"start": 0, "end": 1, "text": " a\n\n2\n00:00:01,000 --> 00:00:02,000\nb"}, ",")
    assert cue.count(" --> ") == 1 and "\n\n" not in cue.rstrip("\n")
