"""A recording as what the model listens to: one channel of float32 at 16 kHz.

WAV is read here. Everything else goes through ffmpeg where there is one; it is let at listed containers only, so that no
playlist inside a recording can make it open other files or addresses.
"""

from __future__ import annotations

import io
import shutil
import subprocess
import wave
from math import gcd
from pathlib import Path

import numpy as np

#: Samples per second the model was trained on.
RATE = 16_000
#: Shortest recording with anything to hear in it, seconds.
SHORTEST = 0.1
#: Seconds ffmpeg may take.
DECODE_SECONDS = 300
CONTAINERS = "aac,aiff,amr,au,caf,flac,matroska,webm,mov,mp4,m4a,3gp,3g2,mj2,mp3,ogg,wav,w64"


class BadSound(Exception):
    """Not a recording that can be read; the message is for a client."""


def load(path: Path) -> np.ndarray:
    """The samples of a file.

    Raises:
        BadSound: it is empty, too short, damaged, or in a form that cannot be read here.
    """
    raw = path.read_bytes()
    samples = _wav(raw) if raw[:4] == b"RIFF" and raw[8:12] == b"WAVE" else None
    if samples is None:
        samples = _ffmpeg(path)
    if len(samples) < SHORTEST * RATE:
        raise BadSound(f"The recording is shorter than {SHORTEST} seconds.")
    return samples


def _wav(raw: bytes) -> np.ndarray | None:
    """PCM samples; None for a WAV of another coding, which is ffmpeg's work."""
    try:
        with wave.open(io.BytesIO(raw)) as file:
            channels, width, rate = file.getnchannels(), file.getsampwidth(), file.getframerate()
            frames = file.readframes(file.getnframes())
    except (wave.Error, EOFError):
        return None
    if not channels or not rate or width not in (1, 2, 3, 4):
        return None
    frames = frames[: len(frames) - len(frames) % (width * channels)]
    mono = _floats(frames, width).reshape(-1, channels).mean(axis=1)
    return _at_rate(mono, rate)


def _floats(frames: bytes, width: int) -> np.ndarray:
    """Samples in [-1, 1); 8-bit WAV is unsigned, all wider ones are signed."""
    if width == 1:
        return (np.frombuffer(frames, np.uint8).astype(np.float32) - 128) / 128
    if width == 3:
        wide = np.zeros((len(frames) // 3, 4), np.uint8)
        wide[:, 1:] = np.frombuffer(frames, np.uint8).reshape(-1, 3)
        return wide.view("<i4").reshape(-1).astype(np.float32) / 2**31
    return np.frombuffer(frames, f"<i{width}").astype(np.float32) / 2 ** (8 * width - 1)


def _at_rate(samples: np.ndarray, rate: int) -> np.ndarray:
    if rate == RATE or not len(samples):
        return samples.astype(np.float32)
    common = gcd(rate, RATE)
    up, down = RATE // common, rate // common
    if up > RATE or down > 1_000_000:
        raise BadSound("The recording's sample rate cannot be read.")
    from scipy.signal import resample_poly  # most of this process's start; recordings at the right rate do without

    return resample_poly(samples, up, down).astype(np.float32)


def _ffmpeg(path: Path) -> np.ndarray:
    program = shutil.which("ffmpeg")
    if program is None:
        raise BadSound("The recording cannot be read: this server reads WAV (PCM) only, because ffmpeg is not installed.")
    command = [program, "-v", "error", "-nostdin", "-protocol_whitelist", "file", "-format_whitelist", CONTAINERS]
    command += ["-i", f"file:{path}", "-vn", "-f", "f32le", "-ac", "1", "-ar", str(RATE), "pipe:1"]
    try:
        done = subprocess.run(command, capture_output=True, timeout=DECODE_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise BadSound("The recording took too long to read.") from None
    if done.returncode or not done.stdout:
        raise BadSound("The recording cannot be read: it is damaged or in an unknown form.")
    return np.frombuffer(done.stdout, "<f4")
