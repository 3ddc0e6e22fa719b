// What happened to the ring, as the server tells it, and what of it belongs in the banner. Pure.
import { clock, milliseconds } from '../lib/format';

export type EventKind =
  | 'joined'
  | 'left'
  | 'lost'
  | 'drained'
  | 'undrained'
  | 'left_out'
  | 'cut'
  | 'back'
  | 'ring_broken'
  | 'plan'
  | 'plan_failed'
  | 'recovered'
  | 'cache';

export interface ClusterEvent {
  number: number; // rises by one with each event
  at: number; // seconds since 1970
  kind: EventKind;
  member: string | null;
  plan: number | null;
  took_ms: number | null;
  text: string; // a whole sentence
}

const kTroubles: readonly string[] = ['lost', 'left_out', 'cut', 'ring_broken', 'plan_failed'];
const kMends: readonly string[] = ['recovered', 'back', 'plan'];
const kBannerSeconds = 15 * 60;

export const isTrouble = (event: ClusterEvent): boolean => kTroubles.includes(event.kind);

export interface News {
  events: ClusterEvent[]; // the troubles that belong together and what was done, oldest first
  settled: boolean; // the ring works again
}

// What the banner shows: the last trouble that the reader has not put away (whose number is above `seen`), those
// before it that nothing had mended yet, and what was done since. Null: nothing in the last quarter of an hour.
// `now`: seconds since 1970.
export function newsOf(events: ClusterEvent[], seen: number, now: number): News | null {
  const last = events.findLastIndex(isTrouble);
  if (last < 0 || events[last]!.number <= seen || now - events[last]!.at > kBannerSeconds) return null;
  let first = last;
  for (let i = last - 1; i >= 0 && !kMends.includes(events[i]!.kind); i--) {
    if (isTrouble(events[i]!) && events[i]!.number > seen && events[last]!.at - events[i]!.at < kBannerSeconds) first = i;
  }
  const mends = events.slice(last).filter((event) => kMends.includes(event.kind));
  return {
    events: [...events.slice(first, last + 1).filter(isTrouble), ...mends.slice(0, 2)],
    settled: mends.length > 0,
  };
}

// "15:03:12", and on other days than today the date before it.
export function timeOf(event: ClusterEvent, now: number): string {
  const day = (seconds: number) => new Date(seconds * 1000).toLocaleDateString('en-CA');
  return day(event.at) === day(now) ? clock(event.at) : `${day(event.at)} ${clock(event.at)}`;
}

// The sentence, and how long it took where the sentence does not say a time.
export function eventInWords(event: ClusterEvent): string {
  const text = /[.!?…]$/.test(event.text) ? event.text : `${event.text}.`;
  if (!event.took_ms) return text;
  const took = milliseconds(event.took_ms);
  return /\d ?(ms|s|µs)\b/.test(text) ? text : `${text} It took ${took}.`;
}
