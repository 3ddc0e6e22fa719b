// The steps as they go round: a line for each member, a bar for each step that it computes.
import { useEffect, useRef, useState } from 'preact/hooks';
import { ApiError, explain, getJson } from '../lib/api';
import { middleCut, milliseconds } from '../lib/format';
import { Icon } from '../shell/icon';
import { color, watchColors } from '../shell/theme';
import { type Bar, type Timeline, changeWindow, inRingOrder, lastSteps, timelineInWords, timelineOf } from './trace';

const kSeconds = 2;
const kLane = 26;
const kMostNames = 190; // the widest column of names
const kAxis = 20;

interface Window {
  from: number;
  to: number;
}

function drawLane(
  context: CanvasRenderingContext2D,
  bars: Bar[],
  y: number,
  names: number,
  width: number,
  window: Window,
  colors: Record<string, string>,
) {
  const scale = width / (window.to - window.from);
  let painted = -1; // bars narrower than a pixel share one
  for (const bar of bars) {
    if (bar.end < window.from || bar.begin > window.to) continue;
    const left = Math.max((bar.begin - window.from) * scale, 0);
    const right = Math.min((bar.end - window.from) * scale, width);
    if (bar.kind === 'step' && right < painted) continue;
    if (bar.kind === 'step') painted = Math.max(right, Math.floor(left) + 1);
    const step = bar.kind === 'step';
    context.fillStyle = step ? colors[`step${Math.abs(bar.step) % 4}`]! : colors[bar.kind]!;
    context.fillRect(
      names + left,
      step ? y + 4 : y + kLane - 6,
      Math.max(right - left, step ? 1 : 0.5),
      step ? kLane - 11 : 3,
    );
    const label = `${bar.step}${bar.rows > 0 ? ` · ${bar.rows}` : ''}`;
    if (!step || right - left < label.length * 6.4 + 6) continue;
    context.fillStyle = colors.ink!;
    context.fillText(label, names + left + 4, y + kLane / 2 - 1);
  }
}

// Without what is known of the member's clock, which the description of the picture has.
const shortName = (name: string): string => name.replace(/ \(clock .*\)$/, '');

// The text, or as much of its beginning and its end as the width has room for.
function fitting(context: CanvasRenderingContext2D, text: string, width: number): string {
  let limit = text.length;
  while (limit > 3 && context.measureText(middleCut(text, limit)).width > width) limit--;
  return middleCut(text, limit);
}

function namesWidth(context: CanvasRenderingContext2D, timeline: Timeline, width: number): number {
  const widest = Math.max(...timeline.lanes.map((lane) => context.measureText(shortName(lane.name)).width));
  return Math.min(widest + 12, kMostNames, width * 0.3);
}

function draw(canvas: HTMLCanvasElement, timeline: Timeline, window: Window) {
  const width = canvas.clientWidth;
  const height = timeline.lanes.length * kLane + kAxis;
  const ratio = devicePixelRatio || 1;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  canvas.style.height = `${height}px`;
  const context = canvas.getContext('2d')!;
  context.scale(ratio, ratio);
  context.font = '11px system-ui, sans-serif';
  context.textBaseline = 'middle';
  const colors: Record<string, string> = { ink: color('--on-step'), send: color('--line-b'), wait: color('--rule') };
  for (let i = 0; i < 4; i++) colors[`step${i}`] = color(`--step-${i}`);
  const [faint, rule] = [color('--faint'), color('--rule')];
  const names = namesWidth(context, timeline, width);
  timeline.lanes.forEach((lane, i) => {
    context.fillStyle = rule;
    context.fillRect(names, i * kLane + kLane - 1, width - names, 1);
    drawLane(context, lane.bars, i * kLane, names, width - names, window, colors);
    context.fillStyle = faint;
    context.fillText(fitting(context, shortName(lane.name), names - 10), 0, i * kLane + kLane / 2 - 1);
  });
  const y = timeline.lanes.length * kLane + kAxis / 2 + 2;
  context.fillStyle = faint;
  context.fillText(`${window.from.toFixed(1)} ms`, names, y);
  const end = `${window.to.toFixed(1)} ms`;
  context.fillText(end, width - context.measureText(end).width, y);
}

function Canvas({ timeline, window }: { timeline: Timeline; window: Window }) {
  const canvas = useRef<HTMLCanvasElement>(null);
  useEffect(() => {
    const paint = () => draw(canvas.current!, timeline, window);
    paint();
    const observer = new ResizeObserver(paint);
    observer.observe(canvas.current!.parentElement!);
    const end = watchColors(paint);
    return () => {
      observer.disconnect();
      end();
    };
  }, [timeline, window]);
  return <canvas ref={canvas} class="timeline" role="img" aria-label={timelineInWords(timeline)} />;
}

function save(trace: unknown) {
  const url = URL.createObjectURL(new Blob([JSON.stringify(trace)], { type: 'application/json' }));
  const link = document.createElement('a');
  link.href = url;
  link.download = 'gyre-trace.json';
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}

function Tools({
  timeline,
  window,
  onWindow,
  onSave,
}: {
  timeline: Timeline;
  window: Window;
  onWindow: (w: Window) => void;
  onSave: () => void;
}) {
  const change = (factor: number, shift: number) => onWindow(changeWindow(window, timeline.span, factor, shift));
  return (
    <div class="row">
      <button type="button" class="small" onClick={() => change(0.5, 0)}>
        Closer
      </button>
      <button type="button" class="small" onClick={() => change(2, 0)}>
        Farther
      </button>
      <button type="button" class="small" onClick={() => change(1, -0.5)}>
        Earlier
      </button>
      <button type="button" class="small" onClick={() => change(1, 0.5)}>
        Later
      </button>
      <button type="button" class="small" onClick={onSave}>
        <Icon name="download" />
        Save for Perfetto
      </button>
    </div>
  );
}

// `order`: the members as they follow each other in the ring.
export function TimelineCard({ order }: { order: string[] }) {
  const [trace, setTrace] = useState<unknown>(null);
  const [timeline, setTimeline] = useState<Timeline | null>(null);
  const [window, setWindow] = useState<Window>({ from: 0, to: 1 });
  const [note, setNote] = useState('');
  const [busy, setBusy] = useState(false);
  const record = async () => {
    setBusy(true);
    setNote(`Recording for ${kSeconds} seconds…`);
    try {
      const answer = await getJson<unknown>(`/v1/cluster/trace?seconds=${kSeconds}`);
      const found = inRingOrder(timelineOf(answer), order);
      setTrace(answer);
      setTimeline(found.lanes.length > 0 ? found : null);
      setWindow(lastSteps(found, 12));
      setNote(
        found.steps > 0
          ? `${found.steps} steps in ${milliseconds(found.span)}.`
          : 'No step ran while it was recorded. Ask the ring something meanwhile.',
      );
    } catch (error) {
      const missing = error instanceof ApiError && error.status === 404;
      setNote(missing ? 'This server records no timelines.' : explain(error));
    }
    setBusy(false);
  };
  return (
    <section class="card" aria-label="Timeline of steps">
      <div class="card-head">
        <h2>Steps on their way round</h2>
        <button type="button" disabled={busy} onClick={record}>
          {timeline ? 'Record again' : `Record ${kSeconds} seconds`}
        </button>
      </div>
      <p class="hint" role="status">
        {note || 'Shows which member computes which step, and when. The numbers are the step and its rows.'}
      </p>
      {timeline && <Canvas timeline={timeline} window={window} />}
      {timeline && <Tools timeline={timeline} window={window} onWindow={setWindow} onSave={() => save(trace)} />}
    </section>
  );
}
