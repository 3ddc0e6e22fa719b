// What the server says about its ring, and what it answers to a change. Layers count from 0, both ends inclusive.

import type { ClusterEvent } from './events';

export interface Layers {
  first: number;
  last: number;
}

export interface Sent {
  to: string;
  rows: number;
  bytes: number;
  bytes_per_second: number;
  rows_per_second?: number; // older servers do not say it
  latency_ms: number | null;
}

// What was measured of a member's machine; 0: unknown.
export interface Measured {
  memory_bytes_per_second: number;
  operations_per_second: number;
  disk_bytes_per_second: number;
  slowdown: number; // its steps take so many times what was measured for
  stage_ms: number; // that its part of a step is expected to take
  why: string; // it has the layers that it has
  links: { to: string; failure: string; round_trip_ms: number; bytes_per_second: number }[];
}

// A plan that is expected to be faster than the one that serves.
export interface Proposal {
  ranges: string;
  gain: number;
  step_ms: number;
  step_ms_now: number;
  why: string;
}

export interface Member {
  name: string;
  local: boolean;
  address: string;
  host: string;
  isa: string;
  threads: number;
  memory_bytes: number; // 0: unknown
  weights_room_bytes: number; // on its disk; 0: it fetches no weights
  weight_bytes: number;
  kv_bytes: number;
  layers: Layers | null;
  state: 'serving' | 'idle' | 'drained' | 'left_out';
  why: string;
  busy: number;
  steps: number;
  step_ms: number; // the mean since the last news; 0 if there was none
  sent: Sent | null;
  measured: Measured;
}

// The units of one kind of memory for sequences; what a model has none of is absent.
export interface Memory {
  kind: string; // blocks (of the KV cache), slots (of recurrent state), window_blocks (of layers with a window)
  units: number;
  available: number; // free and cached ones
  cached: number;
  window: number; // positions that a row reads of them; 0: all
  unit_bytes: number;
}

export interface HistoryEntry {
  plan: number;
  ranges: string;
  at: number; // seconds since 1970
  took_ms: number;
  paused_ms?: number; // for which the ring gave no results before the plan served
  pages_moved: number;
  result: string;
}

export interface ClusterStatus {
  version: string;
  state: string;
  plan: { number: number; ranges: string } | null;
  rebalance: 'auto' | 'ask' | 'off';
  step_ms: number; // between two steps of the plan, as they are expected; 0: unknown
  proposal: Proposal | null;
  model: { id: string; architecture: string; layers: number; context: number; kv_type: string; wire: string } | null;
  members: Member[];
  engine: {
    waiting: number;
    prefill: number;
    decode: number;
    held: number;
    memory: Memory[];
    block_size: number;
    requests: number;
    finished: number;
    failed: number;
    cancelled: number;
    tokens_generated: number;
    tokens_per_second: number;
    preemptions: number;
    steps: number;
    pauses: number;
    last_pause_ms: number;
    longest_pause_ms: number;
  };
  plans: { made: number; aborted: number; lost: number };
  history: HistoryEntry[];
  events?: ClusterEvent[];
}

export interface Move {
  layers: Layers;
  from: string | null; // null: nobody runs them
  to: string;
  weight_bytes: number;
  kv_bytes: number;
}

export interface ChangeReply {
  plan: number | null;
  ranges: string;
  dry_run: boolean;
  moves: Move[];
  members: {
    name: string;
    layers: Layers | null;
    weight_bytes: number;
    kv_bytes: number;
    memory_bytes: number;
    fits: boolean;
  }[];
  took_ms: number;
  pages_moved: number;
}

// A change of the plan, before or while it is asked for.
export type Change =
  { kind: 'resize'; ranges: string } | { kind: 'drain'; worker: string } | { kind: 'undrain'; worker: string };

// An undrain moves nothing, so there is nothing to ask for before.
export const hasDryRun = (change: Change): boolean => change.kind !== 'undrain';

export function changeRequest(change: Change, dryRun: boolean): { path: string; body: object } {
  const path = `/v1/cluster/${change.kind}`;
  const what = change.kind === 'resize' ? { ranges: change.ranges } : { worker: change.worker };
  return { path, body: dryRun ? { ...what, dry_run: true } : what };
}

export const layerCount = (layers: Layers | null): number => (layers ? layers.last - layers.first + 1 : 0);

export function layersInWords(layers: Layers | null): string {
  if (!layers) return 'no layers';
  return layers.first === layers.last ? `layer ${layers.first}` : `layers ${layers.first}–${layers.last}`;
}

// `stale`: nothing is known since then, so it is what was.
export function stateInWords(member: Member, stale = ''): string {
  switch (member.state) {
    case 'serving':
      return stale ? 'served' : 'serves';
    case 'idle':
      return stale ? 'had no layers' : 'has no layers';
    case 'drained':
      return stale ? 'was drained' : 'drained';
    case 'left_out':
      return `${stale ? 'was left out' : 'left out'}${member.why ? `: ${member.why}` : ''}`;
    default:
      return member.state;
  }
}

export const gainInWords = (gain: number): string => `${Math.round((gain - 1) * 100)}% more steps`;
