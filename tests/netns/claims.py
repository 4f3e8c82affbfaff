"""What the probes of tests/netns.sh claim, and how they are told a place."""


class NotSo(Exception):
    """A claim does not hold."""


def claim(holds, otherwise):
    if not holds:
        raise NotSo(otherwise)


def address(text):
    host, _, port = text.rpartition(":")
    return host.strip("[]"), int(port)
