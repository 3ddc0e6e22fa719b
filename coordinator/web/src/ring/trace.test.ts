import { expect, it } from 'vitest';
import { changeWindow, inRingOrder, lastSteps, timelineInWords, timelineOf } from './trace';

const x = (pid: number, name: string, ts: number, dur: number, step: number) => ({
  ph: 'X',
  name,
  pid,
  tid: 'stage',
  ts,
  dur,
  args: { step, rows: 2 },
});
const trace = {
  traceEvents: [
    x(1, 'step', 2000, 1000, 8),
    x(0, 'step', 1000, 500, 7),
    x(1, 'send', 3000, 100, 8),
    { ph: 'M', name: 'process_name', pid: 1, args: { name: 'b' } },
    { ph: 'M', name: 'process_name', pid: 0, args: { name: 'coordinator' } },
    { ph: 'X', name: 'other', pid: 9, ts: 0, dur: 1 },
    { ph: 'i', name: 'step', pid: 9, ts: 0 },
  ],
};

it('becomes a lane for each process, in milliseconds from its first event', () => {
  const timeline = timelineOf(trace);
  expect(timeline.lanes.map((lane) => [lane.name, lane.bars.length, lane.busyMs])).toEqual([
    ['coordinator', 1, 0.5],
    ['b', 2, 1],
  ]);
  expect(timeline.lanes[1]!.bars[0]).toEqual({ begin: 1, end: 2, kind: 'step', step: 8, rows: 2 });
  expect(timeline).toMatchObject({ steps: 2, span: 2.1 });
  expect(timelineInWords(timeline)).toContain('b computes 48% of the time');
});

it('takes the plain list of events too, and nonsense for nothing', () => {
  expect(timelineOf(trace.traceEvents).steps).toBe(2);
  for (const nothing of [null, {}, { traceEvents: 3 }, 'x', []])
    expect(timelineOf(nothing)).toEqual({ lanes: [], span: 0, steps: 0 });
});

it('first shows its last steps', () => {
  expect(lastSteps(timelineOf(trace), 1)).toEqual({ from: 1, to: 2.1 });
  expect(lastSteps(timelineOf(trace), 9).from).toBe(0);
});

it('zooms and shifts within its span', () => {
  expect(changeWindow({ from: 40, to: 60 }, 100, 0.5, 0)).toEqual({ from: 45, to: 55 });
  expect(changeWindow({ from: 40, to: 60 }, 100, 99, 0)).toEqual({ from: 0, to: 100 });
  expect(changeWindow({ from: 90, to: 100 }, 100, 1, 0.5)).toEqual({ from: 90, to: 100 });
});

it('has its lanes in the order of the ring', () => {
  const lane = (name: string) => ({ name, bars: [], busyMs: 0 });
  const lanes = ['birch', 'other', 'amber (clock known to 90 us)', 'coordinator', 'amber-2'].map(lane);
  const ordered = inRingOrder({ lanes, span: 1, steps: 0 }, ['amber-2', 'amber', 'birch']);
  expect(ordered.lanes.map(({ name }) => name)).toEqual([
    'coordinator',
    'amber-2',
    'amber (clock known to 90 us)',
    'birch',
    'other',
  ]);
});
