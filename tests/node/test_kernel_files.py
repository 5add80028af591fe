"""Kernel files are parsed strictly: rubbish is a missing signal, never a crash or a zero."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.node import kernel_files
from fairlead.node.kernel_files import CpuStat, Quota, StallTime

V1_STAT = b"nr_periods 120\nnr_throttled 7\nthrottled_time 53219000\nnr_bursts 0\nburst_time 0\n"
V2_STAT = (
    b"usage_usec 5000000\nuser_usec 4000000\nsystem_usec 1000000\ncore_sched.force_idle_usec 0\n"
    b"nr_periods 120\nnr_throttled 7\nthrottled_usec 53219\nnr_bursts 0\nburst_usec 0\n"
)
PSI = (
    b"some avg10=1.01 avg60=0.50 avg300=0.10 total=123456\n"
    b"full avg10=0.00 avg60=0.00 avg300=0.00 total=99\n"
)


def test_what_the_kernel_writes_is_read() -> None:
    """Both versions, in microseconds."""
    assert kernel_files.cpu_stat_v1(V1_STAT) == CpuStat(120, 7, 53219, None)
    assert kernel_files.cpu_stat_v2(V2_STAT) == CpuStat(120, 7, 53219, 5_000_000)
    assert kernel_files.cpu_stat_v2(b"usage_usec 5\n") == CpuStat(0, 0, 0, 5)
    assert kernel_files.counter(b"123456789\n") == 123456789
    assert kernel_files.quota_v1(b"50000\n", b"100000\n") == Quota(50_000, 100_000)
    assert kernel_files.quota_v1(b"-1\n", b"100000\n") == Quota(None, 100_000)
    assert kernel_files.quota_v2(b"max 100000\n") == Quota(None, 100_000)
    assert kernel_files.quota_v2(b"50000 100000\n") == Quota(50_000, 100_000)
    assert kernel_files.pressure(PSI) == StallTime(123456, 99)
    assert kernel_files.pressure(PSI.splitlines(keepends=True)[0]) == StallTime(123456, None)


def test_quota_in_millicores() -> None:
    """Rounded down: a limit is never reported as more than it is."""
    assert Quota(50_000, 100_000).millicores == 500
    assert Quota(33_333, 100_000).millicores == 333
    assert Quota(None, 100_000).millicores is None


RUBBISH = [
    b"",
    b"\n",
    b" ",
    b"\0",
    b"nan\n",
    b"1_000\n",
    "١٢\n".encode(),
    b"+5\n",
    b"-5\n",
    b"0x10\n",
    b"99999999999999999999999\n",
    b"nr_periods\n",
    b"nr_periods 1 2\n",
    b"nr_periods -1\n",
    b"nr_periods 1\nnr_periods 2\nnr_throttled 0\nthrottled_time 0\n",
    b"x 1\n" * 5000,
    b"usage_usec 5\nnr_periods 1\n",
    b"0 100000\n",
    b"max 0\n",
    b"max\n",
]


@pytest.mark.parametrize("data", RUBBISH)
def test_rubbish_is_missing(data: bytes) -> None:
    """Empty, huge, foreign digits, repeated keys, half a table: None from every reader."""
    assert kernel_files.cpu_stat_v1(data) is None
    assert kernel_files.cpu_stat_v2(data) is None
    assert kernel_files.counter(data) is None
    assert kernel_files.quota_v2(data) is None
    assert kernel_files.quota_v1(data, b"100000\n") is None
    assert kernel_files.quota_v1(b"50000\n", data) is None
    assert kernel_files.pressure(data) is None


@pytest.mark.parametrize(
    ("data", "read"),
    [
        (V1_STAT, kernel_files.cpu_stat_v1),
        (V2_STAT, kernel_files.cpu_stat_v2),
        (b"50000 100000\n", kernel_files.quota_v2),
        (b"123456\n", kernel_files.counter),
        (PSI, kernel_files.pressure),
    ],
)
def test_a_truncated_file_is_never_half_believed(data: bytes, read: object) -> None:
    """Cut anywhere but at the end of a line, the file is missing; a shorter number is a lie."""
    for end in range(len(data)):
        if not data[:end].endswith(b"\n"):
            assert read(data[:end]) is None  # type: ignore[operator]


@given(st.binary(max_size=300))
def test_no_bytes_crash_a_reader(data: bytes) -> None:
    """Whatever a file holds, the answer is a value or None."""
    for read in (
        kernel_files.cpu_stat_v1,
        kernel_files.cpu_stat_v2,
        kernel_files.counter,
        kernel_files.quota_v2,
        kernel_files.pressure,
    ):
        read(data)
    kernel_files.quota_v1(data, data)
