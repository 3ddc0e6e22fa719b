#!/usr/bin/env python3
"""A training loop's client: a teacher behind POST /v1/score, a student in numpy.

  scripts/gkd_example.py --url http://127.0.0.1:8080 [--text FILE]
  scripts/gkd_example.py --start build/release/cli/gyre --model models/demo.gguf      # starts the server itself

Generalized knowledge distillation (Agarwal et al., arXiv 2306.13649): a batch is part the texts that are given, part
what the student wrote itself. The teacher scores it: for each position the best K ids with their log-probabilities and
the log-probability of all others together, as a structured array of numpy. The student here is a table of bigrams,
so that the loop is short; a real one takes the same arrays.

numpy is all it needs; without it the exit code is 77.
"""
import argparse
import io
import json
import random
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

try:
    import numpy as np
except ImportError:
    print("numpy is missing")
    sys.exit(77)

TEXT = """Gyre cuts a model into stages, contiguous ranges of layers, and joins them into a ring. The coordinator
tokenizes, schedules and samples. A member owns one stage, its weights and its pages of the cache. Layers can move from
one worker to another while text is being generated, and the text does not change."""


class Teacher:
    """The server's routes that the loop needs."""

    def __init__(self, url):
        self.url = url.rstrip("/")

    def post(self, path, body):
        request = urllib.request.Request(self.url + path, json.dumps(body).encode(),
                                         {"content-type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=600) as answer:
                return answer.read()
        except urllib.error.HTTPError as error:
            raise SystemExit(f"{path}: {error.code} {error.read().decode(errors='replace')}")

    def vocabulary(self):
        with urllib.request.urlopen(self.url + "/v1/models", timeout=60) as answer:
            return json.load(answer)["data"][0]["meta"]["n_vocab"]

    def ids(self, text):
        return json.loads(self.post("/tokenize", {"content": text}))["tokens"]

    def score(self, batch, top):
        """[positions] of all sequences, from the second id of each on: index, position, id, top_id, top_logprob, rest."""
        answer = self.post("/v1/score", {"input": batch, "top": top, "format": "npy"})
        return np.load(io.BytesIO(answer), allow_pickle=False)


class Bigrams:
    """A student: logits of the next id by the last one."""

    def __init__(self, vocabulary):
        self.logits = np.zeros((vocabulary, vocabulary), np.float32)

    def logprobs(self, before):
        z = self.logits[before]
        z = z - z.max(axis=1, keepdims=True)
        return z - np.log(np.exp(z).sum(axis=1, keepdims=True))

    def write(self, start, length, rng):
        ids = [start]
        while len(ids) < length:
            p = np.exp(self.logprobs(ids[-1:])[0].astype(np.float64))
            ids.append(int(rng.choice(len(p), p=p / p.sum())))
        return ids


def outcomes(scores, logq):
    """Probabilities of teacher and student over the best K ids and all others together: [positions][K + 1] each."""
    logp = np.concatenate([scores["top_logprob"], scores["rest"][:, None]], axis=1).astype(np.float64)
    p = np.exp(np.maximum(logp, -60.0))
    q = np.exp(np.take_along_axis(logq, scores["top_id"], axis=1).astype(np.float64))
    rest = np.maximum(1 - q.sum(axis=1, keepdims=True), 1e-9)
    return p / p.sum(axis=1, keepdims=True), np.concatenate([q, rest], axis=1)


def divergences(p, q, beta):
    """Mean forward KL, reverse KL and generalized Jensen-Shannon divergence in nats."""
    def kl(a, b):
        return float((a * np.log(a / b)).sum(axis=1).mean())
    m = beta * p + (1 - beta) * q
    return kl(p, q), kl(q, p), beta * kl(p, m) + (1 - beta) * kl(q, m)


def step(student, batch, scores, rate, beta):
    """One step down the forward KL. Returns the divergences before it."""
    before = np.array([batch[i][p - 1] for i, p in zip(scores["index"], scores["position"])])
    logq = student.logprobs(before)
    p, q = outcomes(scores, logq)
    # The gradient by a logit: q - p for the best K; of the others q - q * (their p together) / (their q together).
    gradient = np.exp(logq.astype(np.float64))
    gradient *= (1 - p[:, -1:] / q[:, -1:])
    best = np.exp(np.take_along_axis(logq, scores["top_id"], axis=1).astype(np.float64)) - p[:, :-1]
    np.put_along_axis(gradient, scores["top_id"].astype(np.int64), best, axis=1)
    np.add.at(student.logits, before, (-rate * gradient).astype(np.float32))
    return divergences(p, q, beta)


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def start(program, model):
    """The server's process and URL, when it is ready."""
    address = f"127.0.0.1:{free_port()}"
    server = subprocess.Popen([program, "serve", model, "--http", address, "-q"])
    for _ in range(600):
        try:
            with urllib.request.urlopen(f"http://{address}/ready", timeout=5):
                return server, f"http://{address}"
        except (urllib.error.URLError, OSError):
            if server.poll() is not None:
                raise SystemExit(f"the server ended with {server.returncode}")
            time.sleep(0.1)
    server.kill()
    raise SystemExit("the server is not ready after a minute")


def train(arguments, url):
    teacher = Teacher(url)
    vocabulary = teacher.vocabulary()
    student = Bigrams(vocabulary)
    rng = np.random.default_rng(arguments.seed)
    choose = random.Random(arguments.seed)
    text = open(arguments.text, encoding="utf-8").read() if arguments.text else TEXT
    given = teacher.ids(text)
    losses, tokens, asked = [], 0, 0.0
    for n in range(arguments.steps):
        batch = []
        for _ in range(arguments.batch):
            at = choose.randrange(max(1, len(given) - arguments.length))
            piece = given[at:at + arguments.length]
            own = choose.random() < arguments.own
            batch.append(student.write(piece[0], arguments.length, rng) if own else piece)
        began = time.monotonic()
        scores = teacher.score(batch, min(arguments.top, vocabulary))
        asked += time.monotonic() - began
        tokens += len(scores)
        forward, reverse, js = step(student, batch, scores, arguments.rate, arguments.beta)
        losses.append(forward)
        print(f"step {n:3}  forward KL {forward:.4f}  reverse KL {reverse:.4f}  Jensen-Shannon {js:.4f}")
    print(f"{tokens} positions, {tokens / asked:.0f} a second from the teacher")
    return losses


def main():
    parser = argparse.ArgumentParser(description="Distillation from a teacher behind POST /v1/score.")
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--url", help="a server that runs")
    where.add_argument("--start", metavar="GYRE", help="the program; starts a server with --model")
    parser.add_argument("--model", help="of the server that --start starts")
    parser.add_argument("--text", help="texts that are given (default: a few sentences)")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--batch", type=int, default=8, help="sequences of a step")
    parser.add_argument("--length", type=int, default=48, help="ids of a sequence")
    parser.add_argument("--top", type=int, default=64, help="K")
    parser.add_argument("--own", type=float, default=0.25, help="share of sequences that the student writes")
    parser.add_argument("--beta", type=float, default=0.5, help="of the Jensen-Shannon divergence")
    parser.add_argument("--rate", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--check", action="store_true", help="fail unless the loss falls by a tenth")
    arguments = parser.parse_args()
    server = None
    url = arguments.url
    if arguments.start:
        server, url = start(arguments.start, arguments.model)
    try:
        losses = train(arguments, url)
    finally:
        if server is not None:
            server.terminate()
            server.wait()
    third = max(1, len(losses) // 3)
    first, last = sum(losses[:third]) / third, sum(losses[-third:]) / third
    if arguments.check and not last < 0.9 * first:
        print(f"the loss fell from {first:.4f} to {last:.4f} only")
        sys.exit(1)


if __name__ == "__main__":
    main()
