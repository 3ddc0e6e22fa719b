import { expect, it } from 'vitest';
import { type ClusterEvent, type EventKind, eventInWords, newsOf, timeOf } from './events';

let number = 0;
const event = (kind: EventKind, at: number, more: Partial<ClusterEvent> = {}): ClusterEvent => ({
  number: ++number,
  at,
  kind,
  member: 'birch',
  plan: null,
  took_ms: null,
  text: `birch: ${kind}.`,
  ...more,
});
const kinds = (events: ClusterEvent[], seen = -1, now = 1000) =>
  newsOf(events, seen, now)?.events.map((one) => one.kind) ?? null;

it('says nothing while nothing went wrong', () => {
  expect(kinds([])).toBeNull();
  expect(kinds([event('joined', 990), event('plan', 991), event('drained', 992), event('left', 993)])).toBeNull();
});

it('tells a loss and what was done', () => {
  const lost = [event('joined', 900), event('plan', 901), event('lost', 990)];
  expect(newsOf(lost, -1, 991)).toEqual({ events: [lost[2]], settled: false });
  const mended = [...lost, event('joined', 990), event('recovered', 991)];
  expect(newsOf(mended, -1, 1000)).toEqual({ events: [lost[2], mended[4]], settled: true });
});

it('keeps losses together that nothing had mended between', () => {
  expect(kinds([event('lost', 980), event('recovered', 985), event('lost', 990), event('ring_broken', 991)])).toEqual([
    'lost',
    'ring_broken',
  ]);
});

it('is put away by the reader and by time, and comes again with the next loss', () => {
  const lost = event('lost', 990);
  expect(kinds([lost], lost.number)).toBeNull();
  expect(kinds([lost], -1, 990 + 3600)).toBeNull();
  expect(kinds([lost, event('recovered', 991), event('cut', 995)], lost.number)).toEqual(['cut']);
});

it('says how long it took, once', () => {
  expect(eventInWords(event('recovered', 1, { took_ms: 540, text: 'Plan 4 serves.' }))).toBe(
    'Plan 4 serves. It took 540 ms.',
  );
  expect(eventInWords(event('recovered', 1, { took_ms: 540, text: 'Requests waited 540 ms.' }))).toBe(
    'Requests waited 540 ms.',
  );
  expect(eventInWords(event('recovered', 1, { took_ms: 540, text: 'plan 4 serves; it had stood for 0.540 s' }))).toBe(
    'plan 4 serves; it had stood for 0.540 s.',
  );
  expect(eventInWords(event('plan', 1, { took_ms: 12, text: 'plan 4 serves: a=0-7' }))).toBe(
    'plan 4 serves: a=0-7. It took 12.0 ms.',
  );
});

it('names the day of events of other days', () => {
  const at = new Date(2026, 4, 7, 15, 3, 12).getTime() / 1000;
  expect(timeOf(event('lost', at), at + 60)).toBe('15:03:12');
  expect(timeOf(event('lost', at), at + 86400)).toBe('2026-05-07 15:03:12');
});
