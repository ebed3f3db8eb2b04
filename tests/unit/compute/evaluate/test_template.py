import os
import select
import socket
import subprocess
import sys

from rebaser_server.compute.local_worker import NUMBER


def test_a_template_whose_daemon_dies_ends_without_a_word() -> None:
    """Also if that has not read all reports, by which Linux resets the connection."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    command = [sys.executable, "-u", "-m", "rebaser_server.compute.local_worker"]
    with theirs:
        template = subprocess.Popen(
            command, stdin=theirs, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )
    channel, given = socket.socketpair()
    read, write = os.pipe()
    socket.send_fds(ours, [(1).to_bytes(NUMBER)], [given.fileno(), write])
    given.close()
    os.close(write)
    assert select.select([ours], [], [], 60)[0]

    ours.close()

    _, said = template.communicate(timeout=60)
    assert (template.returncode, said) == (0, b"")
    channel.close()
    os.close(read)
