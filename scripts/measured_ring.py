"""A ring of processes on this machine: what the scripts measure_* have in common."""
import http.client
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
DEMO = os.path.join(ROOT, "models/demo.gguf")
GYRE = os.environ.get("GYRE", os.path.join(ROOT, "build/release/cli/gyre"))


def command_line(doc, least=0):
    """The words behind the program's name. With --help, or with fewer than `least` of them, the program explains itself and ends."""
    words = sys.argv[1:]
    if "-h" in words or "--help" in words:
        print(doc)
        sys.exit(0)
    if len(words) < least:
        sys.exit(doc)
    return words


class Ring:
    """`gyre serve MODEL --no-local FLAGS...` and its workers. FOLDER in a flag stands for a folder that lives as long as the ring. Used as a
    context: at its end all processes are killed."""

    def __init__(self, model, *flags, min_workers=3):
        self.folder = tempfile.mkdtemp(prefix="gyre-measured-")
        self.workers, self.made = {}, 0
        self.command = [GYRE, "serve", model, "--no-local", "--min-workers", str(min_workers),
                        *(flag.replace("FOLDER", self.folder) for flag in flags)]
        self.log = os.path.join(self.folder, "serve")
        self.cluster, self.http = "127.0.0.1:0", "127.0.0.1:0"
        try:
            self.start()
        except BaseException:
            shutil.rmtree(self.folder)
            raise

    def start(self):
        """Starts the coordinator; after a kill(), at its old addresses."""
        with open(self.log, "w") as log:
            self.coordinator = subprocess.Popen(
                [*self.command, "--cluster", self.cluster, "--http", self.http.removeprefix("http://")], stdout=log, stderr=log)
        while True:
            lines = [line.split()[1] for line in open(self.log) if line.startswith("listening ") and line.endswith("\n")]
            if any(address.startswith("http") for address in lines):
                break
            if self.coordinator.poll() is not None:
                sys.exit(f"gyre serve ended with {self.coordinator.returncode}:\n{open(self.log).read()}")
            time.sleep(0.02)
        self.http = next(address for address in lines if address.startswith("http"))
        self.cluster = next(address for address in lines if not address.startswith("http"))

    def kill(self):
        self.coordinator.kill()
        self.coordinator.wait()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in [*self.workers.values(), self.coordinator]:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
            process.wait()
        shutil.rmtree(self.folder)

    def add(self, *flags, name=None, threads=1):
        """Starts a worker and returns its name."""
        self.made += 1
        name = name or f"m{self.made}"
        with open(os.path.join(self.folder, f"worker-{name}"), "a") as log:
            self.workers[name] = subprocess.Popen(
                [GYRE, "worker", "--join", self.cluster, "--name", name, "--threads", str(threads), "--quiet",
                 *(flag.replace("FOLDER", self.folder) for flag in flags)],
                stdout=log, stderr=log)
        return name

    def remove(self, name):
        """Kills a worker."""
        process = self.workers.pop(name)
        process.kill()
        process.wait()

    def get(self, path):
        with urllib.request.urlopen(self.http + path) as answer:
            return json.load(answer)

    def request(self, path, body, headers=()):
        return urllib.request.urlopen(urllib.request.Request(
            self.http + path, json.dumps(body).encode(), {"content-type": "application/json", **dict(headers)}))

    def post(self, path, body):
        with self.request(path, body) as answer:
            return json.load(answer)

    def status(self):
        return self.get("/v1/cluster")

    def wait(self, what, seconds=300):
        """Asks for the status until `what` of it holds, and returns it."""
        until = time.monotonic() + seconds
        while True:
            status = self.status()
            if what(status):
                return status
            if time.monotonic() > until:
                sys.exit(f"after {seconds} s the cluster is still {status['state']}:\n{open(self.log).read()[-2000:]}")
            time.sleep(0.02)

    def serving(self, stages):
        """Waits until a plan of so many stages serves."""
        return self.wait(lambda s: s["state"].startswith("serving") and stages_of(s) == stages)

    def resize(self, ranges):
        return self.post("/v1/cluster/resize", {"ranges": ranges})

    def share_evenly(self):
        """Gives all workers layers, in the order of their names."""
        layers, names = self.status()["model"]["layers"], sorted(self.workers)
        cuts = [round(i * layers / len(names)) for i in range(len(names) + 1)]
        self.resize(",".join(f"{n}={a}-{b - 1}" for n, a, b in zip(names, cuts, cuts[1:])))


def stages_of(status):
    return sum(m["layers"] is not None for m in status["members"])


def ranges_of(status):
    ring = sorted((m for m in status["members"] if m["layers"]), key=lambda m: m["layers"]["first"])
    return ",".join(f"{m['name']}={m['layers']['first']}-{m['layers']['last']}" for m in ring)


class Stream:
    """A greedy stream of completions, read by a thread: `arrivals` has the time of each event with text, `text` what came."""

    def __init__(self, ring, prompt, tokens, reattach_for=0):
        self.ring, self.reattach_for = ring, reattach_for
        self.body = {"prompt": prompt, "max_tokens": tokens, "temperature": 0, "stream": True, "ignore_eos": True}
        self.arrivals, self.text, self.last, self.error, self.done = [], "", None, None, False
        self.left = threading.Event()
        self.thread = threading.Thread(target=self._read, daemon=True)
        self.thread.start()

    def _read(self):
        until = None
        while not self.done and not self.left.is_set():
            try:
                headers = {} if self.last is None else {"Last-Event-ID": self.last}
                with self.ring.request("/v1/completions", self.body, headers) as answer:
                    until = None
                    self._events(answer)
                if not self.done and not self.left.is_set():
                    raise OSError("the stream ended before its end")
            except (OSError, http.client.HTTPException) as error:
                until = until or time.monotonic() + self.reattach_for
                if time.monotonic() >= until or isinstance(error, urllib.error.HTTPError) and error.code < 500:
                    self.error = str(error)
                    return
                time.sleep(0.01)

    def _events(self, answer):
        event = None
        for line in answer:
            if self.left.is_set():
                return
            if line.startswith(b"id: "):
                event = line[4:].strip().decode()
            elif line.startswith(b"data: [DONE]"):
                self.done = True
            elif line.startswith(b"data: {"):
                data = json.loads(line[6:])
                if "error" in data:
                    self.error = data["error"]["message"]
                    self.left.set()
                    return
                self.text += data["choices"][0]["text"]
                self.arrivals.append(time.monotonic())
                self.last = event or self.last

    def join(self):
        self.thread.join()
        return self

    def leave(self):
        self.left.set()
        self.thread.join()
