"""Claims and addresses for the probes of tests/netns.sh."""


class NotSo(Exception):
    """A claim does not hold."""


def claim(holds, otherwise):
    if not holds:
        raise NotSo(otherwise)


def address(text):
    host, _, port = text.rpartition(":")
    return host.strip("[]"), int(port)
