import { expect, it } from 'vitest';
import type { ClusterStatus } from './cluster';
import { type Feed, kSamples, nextFeed, staleSince } from './feed';

const empty: Feed = { status: null, samples: [], rowRates: {}, fault: 'silent', heardAt: 0 };

function status(rows: number, tokensPerSecond = 0): ClusterStatus {
  return {
    members: [{ name: 'a', sent: { rows } }],
    engine: {
      tokens_per_second: tokensPerSecond,
      waiting: 1,
      prefill: 2,
      decode: 3,
      memory: [{ kind: 'blocks', units: 100, available: 90, cached: 5 }],
    },
  } as unknown as ClusterStatus;
}

it('keeps the last minutes', () => {
  let feed = empty;
  for (let i = 0; i < kSamples + 50; i++) feed = nextFeed(feed, status(i * 10, i), i);
  expect(feed.samples).toHaveLength(kSamples);
  expect(feed.samples.at(-1)).toMatchObject({
    tokensPerSecond: kSamples + 49,
    waiting: 1,
    blocksUsed: 10,
    blocksCached: 5,
  });
  expect(feed.rowRates).toEqual({ a: 10 });
  expect(feed.fault).toBe('');
});

it('takes news between the seconds as the latest, without a point of its own', () => {
  let feed = nextFeed(empty, status(0), 1);
  feed = nextFeed(feed, status(7, 9), 1.1);
  expect(feed.samples).toHaveLength(1);
  expect(feed.samples[0]).toMatchObject({ at: 1, tokensPerSecond: 9 });
});

it('shows no rate for a worker that started again', () => {
  const feed = nextFeed(nextFeed(empty, status(500), 1), status(3), 2);
  expect(feed.rowRates).toEqual({});
});

it('knows since when its news is old', () => {
  expect(staleSince(empty)).toBe('');
  const fresh = nextFeed(empty, status(1), new Date(2026, 4, 7, 15, 3, 12).getTime() / 1000);
  expect(staleSince(fresh)).toBe('');
  expect(staleSince({ ...fresh, fault: 'The server does not answer.' })).toBe('15:03:12');
});

it('takes rows a second from the server where it says them', () => {
  const feed = nextFeed(empty, status(0), 0);
  const said = { ...status(10), members: [{ name: 'a', sent: { rows: 10, rows_per_second: 7 } }] };
  expect(nextFeed(feed, said as unknown as ClusterStatus, 2).rowRates).toEqual({ a: 7 });
});
