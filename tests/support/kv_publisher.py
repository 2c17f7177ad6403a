"""A publisher of KV events like vLLM's: a PUB socket, and a ROUTER that replays what it still remembers."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable

import zmq

END = (-1).to_bytes(8, "big", signed=True)


class Publisher:
    """Runs in a thread, as an engine's does. `batches` may be anything: what a test publishes is its own business."""

    def __init__(
        self,
        events: str = "tcp://127.0.0.1:*",
        replay: str | None = "tcp://127.0.0.1:*",
        *,
        remembers: int = 10_000,
        topic: bytes = b"",
        topic_in_replay: bool = True,
        answers: bool = True,
    ) -> None:
        self._context = zmq.Context()
        self._pub = self._context.socket(zmq.PUB)
        self._pub.setsockopt(zmq.LINGER, 0)
        self._pub.setsockopt(zmq.SNDHWM, 100_000)
        if "*" in events or events.startswith("tcp://127.0.0.1:"):
            self._pub.bind(events)
        else:
            self._pub.connect(events)
        self.events = self._pub.getsockopt_string(zmq.LAST_ENDPOINT)
        self.replay: str | None = None
        self._router: zmq.Socket[bytes] | None = None
        if replay is not None:
            self._router = self._context.socket(zmq.ROUTER)
            self._router.setsockopt(zmq.LINGER, 0)
            self._router.bind(replay)
            self.replay = self._router.getsockopt_string(zmq.LAST_ENDPOINT)
        self._wake, wake = self._context.socket(zmq.PAIR), self._context.socket(zmq.PAIR)
        self._wake.bind("inproc://wake")
        wake.connect("inproc://wake")
        self._topic, self._topic_in_replay, self._answers = topic, topic_in_replay, answers
        self._remembered: deque[tuple[int, bytes]] = deque(maxlen=remembers)
        self._todo: deque[tuple[Callable[[], None], threading.Event]] = deque()
        self.next = 0
        self.asked: list[int] = []  # starts of the replays asked for
        self._thread = threading.Thread(target=self._run, args=(wake,), daemon=True)
        self._thread.start()

    def publish(self, *payloads: bytes) -> None:
        """Number, remember and send batches; returns when that is done."""
        self._do(lambda: self._publish(payloads, heard=True))

    def lose(self, *payloads: bytes) -> None:
        """Number and remember batches that the network then loses."""
        self._do(lambda: self._publish(payloads, heard=False))

    def send(self, frames: Iterable[bytes]) -> None:
        """Send any frames."""
        self._do(lambda: self._pub.send_multipart(list(frames)))

    def close(self) -> None:
        """Vanish, as a killed process does."""
        self._wake.send(b"stop")
        self._thread.join()
        self._context.destroy(linger=0)

    def _do(self, what: Callable[[], None]) -> None:
        done = threading.Event()
        self._todo.append((what, done))
        self._wake.send(b"")
        assert done.wait(20)

    def _publish(self, payloads: Iterable[bytes], *, heard: bool) -> None:
        for payload in payloads:
            self._remembered.append((self.next, payload))
            if heard:
                self._pub.send_multipart((self._topic, self.next.to_bytes(8, "big"), payload))
            self.next += 1

    def _run(self, wake: zmq.Socket[bytes]) -> None:
        poller = zmq.Poller()
        for socket in (wake, self._router):
            if socket is not None:
                poller.register(socket, zmq.POLLIN)
        while True:
            ready = dict(poller.poll())
            if wake in ready:
                if wake.recv() == b"stop":
                    wake.close()
                    return
                what, done = self._todo.popleft()
                what()
                done.set()
            if self._router in ready and self._router is not None:
                identity, empty, start = self._router.recv_multipart()
                assert empty == b""
                self.asked.append(int.from_bytes(start, "big"))
                if self._answers:
                    self._replay(self._router, identity, self.asked[-1])

    def _replay(self, router: zmq.Socket[bytes], identity: bytes, start: int) -> None:
        topic = [self._topic] if self._topic_in_replay else []
        for number, payload in self._remembered:
            if number >= start:
                router.send_multipart([identity, b"", *topic, number.to_bytes(8, "big"), payload])
        router.send_multipart([identity, b"", *([b""] if self._topic_in_replay else []), END, b""])
