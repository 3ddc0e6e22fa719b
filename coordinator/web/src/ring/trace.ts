// Chrome's trace format, as far as the timeline of steps needs it. Pure.

interface TraceEvent {
  ph?: string;
  name?: string;
  pid?: number;
  tid?: number | string;
  ts?: number;
  dur?: number;
  args?: { name?: string; step?: number; rows?: number };
}

export interface Bar {
  begin: number; // milliseconds since the first event
  end: number;
  kind: 'step' | 'send' | 'wait';
  step: number;
  rows: number;
}

export interface Lane {
  name: string;
  bars: Bar[]; // by their begin
  busyMs: number;
}

export interface Timeline {
  lanes: Lane[];
  span: number; // milliseconds
  steps: number;
}

const kKinds = ['step', 'send', 'wait'] as const;

export function timelineOf(trace: unknown): Timeline {
  const given = Array.isArray(trace) ? trace : (trace as { traceEvents?: unknown })?.traceEvents;
  const events = (Array.isArray(given) ? given : []) as TraceEvent[];
  const names = new Map<number, string>();
  const lanes = new Map<number, Lane>();
  const complete = events.filter(
    (event) =>
      event.ph === 'X' && Number.isFinite(event.ts) && (kKinds as readonly string[]).includes(event.name ?? ''),
  );
  // No spread into Math.min: a trace may hold more events than a call takes arguments.
  const start = complete.reduce((least, event) => Math.min(least, event.ts!), Infinity);
  const steps = new Set<number>();
  let span = 0;
  for (const event of events) {
    if (event.ph === 'M' && event.name === 'process_name') names.set(event.pid ?? 0, event.args?.name ?? '');
  }
  for (const event of complete) {
    const pid = event.pid ?? 0;
    const lane = lanes.get(pid) ?? { name: names.get(pid) || `process ${pid}`, bars: [], busyMs: 0 };
    lanes.set(pid, lane);
    const begin = (event.ts! - start) / 1000;
    const end = begin + Math.max(event.dur ?? 0, 0) / 1000;
    const kind = event.name as Bar['kind'];
    const step = event.args?.step ?? -1;
    lane.bars.push({ begin, end, kind, step, rows: event.args?.rows ?? 0 });
    if (kind === 'step') {
      lane.busyMs += end - begin;
      if (step >= 0) steps.add(step);
    }
    span = Math.max(span, end);
  }
  const order = [...lanes.keys()].sort((a, b) => a - b);
  for (const lane of lanes.values()) lane.bars.sort((a, b) => a.begin - b.begin);
  return { lanes: order.map((pid) => lanes.get(pid)!), span, steps: steps.size };
}

// The coordinator's lane first, then the members' as steps go round, then what else there is.
export function inRingOrder(timeline: Timeline, members: string[]): Timeline {
  const placeOf = (name: string) => {
    if (name === 'coordinator') return -1;
    // The name may be followed by what is known of the member's clock.
    const place = members.findIndex((member) => name === member || name.startsWith(`${member} `));
    return place < 0 ? members.length : place;
  };
  return { ...timeline, lanes: [...timeline.lanes].sort((a, b) => placeOf(a.name) - placeOf(b.name)) };
}

// The part of the timeline that is worth a first look: its last `steps` steps, at least a thousandth of it.
export function lastSteps(timeline: Timeline, steps: number): { from: number; to: number } {
  const first = new Map<number, number>();
  for (const lane of timeline.lanes) {
    for (const bar of lane.bars) {
      if (bar.kind !== 'step') continue;
      first.set(bar.step, Math.min(first.get(bar.step) ?? Infinity, bar.begin));
    }
  }
  const begins = [...first.values()].sort((a, b) => a - b);
  const from = begins[Math.max(begins.length - steps, 0)] ?? 0;
  return { from: Math.min(from, timeline.span * 0.999), to: timeline.span };
}

// The window after a zoom by `factor` about its middle, or a shift by a share of its width; it stays in the timeline.
export function changeWindow(
  window: { from: number; to: number },
  span: number,
  factor: number,
  shift: number,
): { from: number; to: number } {
  const width = Math.min(Math.max((window.to - window.from) * factor, span / 2000), span);
  const middle = (window.from + window.to) / 2 + shift * (window.to - window.from);
  const from = Math.min(Math.max(middle - width / 2, 0), span - width);
  return { from, to: from + width };
}

export function timelineInWords(timeline: Timeline): string {
  const busy = timeline.lanes.map(
    (lane) => `${lane.name} computes ${Math.round((lane.busyMs / (timeline.span || 1)) * 100)}% of the time`,
  );
  return `${timeline.steps} steps in ${Math.round(timeline.span)} ms. ${busy.join(', ')}.`;
}
