// The ring's news: one stream of events, opened again when it breaks, and the last minutes of what it said.
import { ApiError, apiKey, explain, isAbort, request } from '../lib/api';
import { clock } from '../lib/format';
import { readEvents } from '../lib/sse';
import { Store } from '../lib/store';
import type { ClusterStatus } from './cluster';

export interface Sample {
  at: number; // seconds since 1970
  tokensPerSecond: number;
  waiting: number;
  prefill: number;
  decode: number;
  blocksUsed: number;
  blocksCached: number;
  blocks: number;
}

export interface Feed {
  status: ClusterStatus | null;
  samples: Sample[]; // oldest first
  rowRates: Record<string, number>; // rows a second that each member sent
  fault: string; // why no news comes, or ""
  heardAt: number; // when the status came, in seconds since 1970
}

// The time of the last news where no more come, else "": what the page shows is what was then.
export const staleSince = (feed: Feed): string => (feed.fault && feed.status ? clock(feed.heardAt) : '');

export const kSamples = 300;
const kUnseenMs = 20000;
const kSilenceMs = 8000; // the server says something each second

// Pure: the feed after one more status at `at`, in seconds since 1970.
export function nextFeed(feed: Feed, status: ClusterStatus, at: number): Feed {
  const { engine } = status;
  const kv = engine.memory.find(({ kind }) => kind === 'blocks');
  const sample: Sample = {
    at,
    tokensPerSecond: engine.tokens_per_second,
    waiting: engine.waiting,
    prefill: engine.prefill,
    decode: engine.decode,
    blocksUsed: kv ? Math.max(kv.units - kv.available, 0) : 0,
    blocksCached: kv?.cached ?? 0,
    blocks: kv?.units ?? 0,
  };
  const last = feed.samples.at(-1);
  // Changes come between the seconds; the graphs take at most two points a second.
  const replace = last !== undefined && at - last.at < 0.45;
  const samples = [
    ...(replace ? feed.samples.slice(0, -1) : feed.samples),
    replace ? { ...sample, at: last.at } : sample,
  ];
  return {
    status,
    samples: samples.slice(-kSamples),
    rowRates: replace ? feed.rowRates : rowRates(feed, status, at),
    fault: '',
    heardAt: at,
  };
}

function rowRates(feed: Feed, status: ClusterStatus, at: number): Record<string, number> {
  const seconds = at - (feed.samples.at(-1)?.at ?? at);
  const rates: Record<string, number> = {};
  for (const member of status.members) {
    const before = feed.status?.members.find((other) => other.name === member.name);
    if (member.sent?.rows_per_second !== undefined) {
      rates[member.name] = member.sent.rows_per_second;
      continue;
    }
    const rows = (member.sent?.rows ?? 0) - (before?.sent?.rows ?? 0);
    if (before && seconds > 0 && rows >= 0) rates[member.name] = rows / seconds;
  }
  return rates;
}

export class ClusterFeed {
  readonly store = new Store<Feed>({ status: null, samples: [], rowRates: {}, fault: '', heardAt: 0 });
  private abort = new AbortController();

  // Runs until the page closes. A new API key starts it again at once. A page that nobody sees gives its connection
  // back: browsers keep only six to a server, for all its pages together.
  start(): void {
    apiKey.watch(() => this.abort.abort());
    let unseen: ReturnType<typeof setTimeout> | undefined;
    document.addEventListener('visibilitychange', () => {
      clearTimeout(unseen);
      if (document.hidden) unseen = setTimeout(() => this.abort.abort(), kUnseenMs);
    });
    void this.run();
  }

  private async run(): Promise<never> {
    for (let wait = 1000; ; wait = Math.min(wait * 1.6, 15000)) {
      await seen();
      this.abort = new AbortController();
      const { signal } = this.abort;
      try {
        await this.read(signal, () => (wait = 1000));
        this.fail('The ring sends no news. Trying again.');
      } catch (error) {
        if (error instanceof ApiError && error.status === 403)
          this.fail('This API key may chat, but not look at the ring: it needs the role "admin".');
        else if (isAbort(error) && document.hidden) continue;
        else if (isAbort(error)) this.fail('The ring has been silent for a while. Trying again.');
        else this.fail(explain(error));
      }
      await pause(wait, signal);
    }
  }

  private async read(signal: AbortSignal, heard: () => void): Promise<void> {
    const abort = this.abort;
    let silence = setTimeout(() => abort.abort(), kSilenceMs);
    try {
      const response = await request('/v1/cluster/events', { signal });
      for await (const event of readEvents(response.body!)) {
        clearTimeout(silence);
        silence = setTimeout(() => abort.abort(), kSilenceMs);
        if (event.event !== 'status') continue;
        heard();
        const status = JSON.parse(event.data) as ClusterStatus;
        this.store.update((feed) => nextFeed(feed, status, Date.now() / 1000));
      }
    } finally {
      clearTimeout(silence);
    }
  }

  private fail(fault: string): void {
    this.store.update((feed) => ({ ...feed, fault }));
  }
}

// Waits until the page is in sight.
function seen(): Promise<void> {
  return new Promise((resolve) => {
    const look = () => {
      if (document.hidden) return;
      document.removeEventListener('visibilitychange', look);
      resolve();
    };
    document.addEventListener('visibilitychange', look);
    look();
  });
}

// Ends early, and at once from then on, when the signal aborts after the wait began.
function pause(ms: number, signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, ms);
    const end = () => {
      clearTimeout(timer);
      resolve();
    };
    if (!signal.aborted) signal.addEventListener('abort', end, { once: true });
  });
}
