"""How many connections there is room for, and under what they are counted."""

from __future__ import annotations

import subprocess
import sys

import pytest

from kb_contracts.http.connections import is_loopback, owner_of

COUNTED = """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))
from kb_contracts.http.connections import connections_within_descriptors
print(connections_within_descriptors({wanted}), resource.getrlimit(resource.RLIMIT_NOFILE)[0])
"""


@pytest.mark.parametrize(
    ("soft", "hard", "wanted", "expected"),
    [
        (1024, 4096, 2000, (2000, 2768)),
        (1024, 4096, 4000, (3328, 4096)),
        (1024, 1024, 4096, (384, 1024)),
        (256, 300, 4096, (22, 300)),
        (64, 64, 4096, (1, 64)),
        (4096, 4096, 100, (100, 4096)),
    ],
)
def test_the_soft_limit_is_raised_and_descriptors_are_kept_for_the_rest(
    soft: int, hard: int, wanted: int, expected: tuple[int, int]
) -> None:
    """No further than is needed, and not beyond the hard one."""
    program = COUNTED.format(soft=soft, hard=hard, wanted=wanted)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert tuple(map(int, done.stdout.split())) == expected


def test_a_network_of_ipv6_is_counted_as_one() -> None:
    """A host chooses freely among the addresses of its own; an address of IPv4 is one host's."""
    assert owner_of("2001:db8::1") == owner_of("2001:db8::ffff:1%eth0") != owner_of("2001:db8:0:1::1")
    assert owner_of("10.0.0.1") == owner_of("::ffff:10.0.0.1") != owner_of("10.0.0.2")
    assert owner_of("no address") == "no address"


def test_loopback_is_known_by_its_form() -> None:
    """Names and addresses, with a zone too."""
    assert all(is_loopback(name) for name in ("localhost", "127.0.0.1", "127.9.9.9", "::1", "::1%lo"))
    assert not any(is_loopback(name) for name in ("", "unix", "10.0.0.1", "localhost.example"))
