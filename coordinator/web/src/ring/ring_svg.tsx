// The ring: an arc for each member, as long as its layers are many, and a handle on each boundary.
import { useEffect, useRef, useState } from 'preact/hooks';
import { count, middleCut, milliseconds, percent, perSecond, rate, stepTime } from '../lib/format';
import { BoundaryHandle } from './boundary_handle';
import { type ClusterStatus, type Member, layersInWords } from './cluster';
import { type Frame, anchorAt, angleOf, arcPath, bandPath, insetRadius, pointAt, shareAngles } from './geometry';
import { hueClass } from './hues';
import { type Share, movedLayers } from './shares';

const kWide: Frame = { width: 760, height: 530, center: { x: 380, y: 254 }, outer: 200, inner: 157, labels: true };
const kCompact: Frame = { width: 400, height: 400, center: { x: 200, y: 198 }, outer: 166, inner: 126, labels: false };
const kFlowInset = 22; // from the band to the dotted circle
const kLinkLetter = 6.4; // the width of a letter of what links say
const kBusyTrack = 8; // the outermost part of the band, which fills with the busy share

interface Props {
  status: ClusterStatus;
  shares: Share[]; // as they serve
  draft: Share[]; // as they are drawn
  stale: string; // the time of the last news where no more come
  locked: boolean;
  onMove: (boundary: number, place: number) => void;
  onUndo: () => void;
}

function Arc({ frame, share, layers, member }: { frame: Frame; share: Share; layers: number; member?: Member }) {
  const { center, inner, outer } = frame;
  const { from, to } = shareAngles(share, layers, 1.2);
  const busy = Math.min(Math.max(member?.busy ?? 0, 0), 1);
  const used = (member?.weight_bytes ?? 0) + (member?.kv_bytes ?? 0);
  const full = member?.memory_bytes ? Math.min(used / member.memory_bytes, 1) : 0;
  const memory = inner - 10;
  return (
    <g class={`arc ${hueClass(share.name)}`}>
      <path class="arc-band" d={bandPath(center, inner, outer - kBusyTrack, from, to)} />
      <path class="arc-busy-track" d={bandPath(center, outer - kBusyTrack + 2, outer, from, to)} />
      {busy > 0 && (
        <path class="arc-busy" d={bandPath(center, outer - kBusyTrack + 2, outer, from, from + (to - from) * busy)} />
      )}
      <path class="arc-memory-track" d={arcPath(center, memory, from, to)} />
      {full > 0 && <path class="arc-memory" d={arcPath(center, memory, from, from + (to - from) * full)} />}
    </g>
  );
}

// The member's number, where its arc has room for it.
function Chip({ frame, share, layers, number }: { frame: Frame; share: Share; layers: number; number: number }) {
  const { center, inner, outer } = frame;
  const { from, to, middle } = shareAngles(share, layers, 1.2);
  if (((to - from) * Math.PI * inner) / 180 < 26) return null;
  const { x, y } = pointAt(center, (inner + outer - kBusyTrack) / 2, middle);
  return (
    <g class={hueClass(share.name)}>
      <circle class="arc-chip" cx={x} cy={y} r="11" />
      <text class="arc-number" x={x} y={y}>
        {number}
      </text>
    </g>
  );
}

// Fine lines between the layers of a member.
function Ticks({ frame, shares, layers }: { frame: Frame; shares: Share[]; layers: number }) {
  const borders = new Set(shares.map((share) => share.first));
  let path = '';
  for (let layer = 1; layer < layers; layer++) {
    if (borders.has(layer)) continue;
    const a = pointAt(frame.center, frame.inner, angleOf(layer, layers));
    const b = pointAt(frame.center, frame.outer - kBusyTrack, angleOf(layer, layers));
    path += `M${a.x.toFixed(1)} ${a.y.toFixed(1)}L${b.x.toFixed(1)} ${b.y.toFixed(1)}`;
  }
  return <path class="ticks" d={path} />;
}

function Label({
  frame,
  share,
  layers,
  member,
  number,
  brief,
}: {
  frame: Frame;
  share: Share;
  layers: number;
  member?: Member;
  number: number;
  brief: boolean;
}) {
  const { middle } = shareAngles(share, layers, 0);
  const at = pointAt(frame.center, frame.outer + 22, middle);
  const anchor = anchorAt(middle);
  const lines = [
    brief ? `${layersInWords(share).replace(/^layers? /, '')} · ${percent(member?.busy ?? 0)}` : layersInWords(share),
  ];
  if (!brief) lines.push(`${percent(member?.busy ?? 0)} busy · ${stepTime(member?.step_ms)}`);
  const above = at.y < frame.center.y - frame.outer * 0.7;
  const below = at.y > frame.center.y + frame.outer * 0.7;
  const height = lines.length * 16;
  const y = below ? at.y + 6 : above ? at.y - height : at.y - height / 2 + 4;
  return (
    <g class={`arc-label ${hueClass(share.name)}`}>
      <text class="arc-name" x={at.x} y={y} text-anchor={anchor}>
        <title>{share.name}</title>
        {`${number} ${middleCut(share.name, 18)}`}
      </text>
      {lines.map((line, i) => (
        <text key={i} class="arc-facts" x={at.x} y={y + 16 * (i + 1)} text-anchor={anchor}>
          {line}
        </text>
      ))}
    </g>
  );
}

// What a member sends to the next one, inside of the ring where they meet.
function LinkLabel({
  frame,
  share,
  layers,
  member,
  brief,
}: {
  frame: Frame;
  share: Share;
  layers: number;
  member?: Member;
  brief: boolean;
}) {
  if (!member?.sent) return null;
  const lines = [milliseconds(member.sent.latency_ms)];
  if (!brief) lines.push(rate(member.sent.bytes_per_second));
  const angle = angleOf(share.last + 1, layers);
  const width = Math.max(...lines.map((line) => line.length)) * kLinkLetter;
  const radius = insetRadius(frame.inner - kFlowInset - 9, angle, width, lines.length * 14);
  const at = pointAt(frame.center, radius, angle);
  return (
    <text class="link-label" x={at.x} y={at.y - (brief ? 0 : 7)}>
      {lines.map((line, i) => (
        <tspan key={i} x={at.x} dy={i === 0 ? 0 : 14}>
          {line}
        </tspan>
      ))}
    </text>
  );
}

function Moved({ frame, shares, draft, layers }: { frame: Frame; shares: Share[]; draft: Share[]; layers: number }) {
  return (
    <>
      {movedLayers(shares, draft).map((move) => (
        <path
          key={`${move.layers.first}-${move.to}`}
          class="moved"
          d={bandPath(
            frame.center,
            frame.inner,
            frame.outer - kBusyTrack,
            angleOf(move.layers.first, layers),
            angleOf(move.layers.last + 1, layers),
          )}
        />
      ))}
    </>
  );
}

function Middle({ frame, status, stale }: { frame: Frame; status: ClusterStatus; stale: string }) {
  const { x, y } = frame.center;
  const { engine } = status;
  const running = engine.prefill + engine.decode;
  if (stale) {
    return (
      <g class="middle">
        <text class="middle-unit" x={x} y={y - 6}>
          no answer since
        </text>
        <text class="middle-queue" x={x} y={y + 12}>
          {stale}
        </text>
      </g>
    );
  }
  return (
    <g class="middle">
      <text class="middle-number" x={x} y={y - 8}>
        {perSecond(engine.tokens_per_second)}
      </text>
      <text class="middle-unit" x={x} y={y + 12}>
        tokens/s
      </text>
      <text class="middle-queue" x={x} y={y + 38}>
        {count(running)} running
      </text>
      <text class="middle-queue" x={x} y={y + 55}>
        {count(engine.waiting)} waiting
      </text>
    </g>
  );
}

function ringInWords(status: ClusterStatus, shares: Share[], stale: string): string {
  const parts = shares.map((share) => {
    const member = status.members.find((m) => m.name === share.name);
    return `${share.name} has layers ${share.first} to ${share.last} and is ${percent(member?.busy ?? 0)} busy`;
  });
  const then = stale ? `, as it was at ${stale}` : '';
  return `The ring of ${shares.length} members${then}: ${parts.join('; ')}.`;
}

// The frame that fits the width at hand.
function useFrame(): [preact.RefObject<HTMLDivElement>, Frame] {
  const box = useRef<HTMLDivElement>(null);
  const [compact, setCompact] = useState(() => innerWidth < 560);
  useEffect(() => {
    const observer = new ResizeObserver(([entry]) => setCompact(entry!.contentRect.width < 540));
    observer.observe(box.current!);
    return () => observer.disconnect();
  }, []);
  return [box, compact ? kCompact : kWide];
}

export function RingSvg({ status, shares, draft, stale, locked, onMove, onUndo }: Props) {
  const [box, frame] = useFrame();
  const layers = status.model?.layers ?? 0;
  const memberOf = (name: string) => status.members.find((member) => member.name === name);
  const brief = draft.length > 7;
  const top = pointAt(frame.center, (frame.inner + frame.outer) / 2, 0);
  const flowing = !stale && (status.engine.tokens_per_second > 0 || status.engine.prefill + status.engine.decode > 0);
  return (
    <div ref={box} class="ring-drawing">
      <svg viewBox={`0 0 ${frame.width} ${frame.height}`} class={frame.labels ? 'ring' : 'ring compact'}>
        <defs>
          <pattern id="hatch" width="7" height="7" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">
            <rect class="hatch-line" width="3" height="7" />
          </pattern>
        </defs>
        <g role="img" aria-label={ringInWords(status, shares, stale)}>
          <circle
            class={flowing ? 'flow flowing' : 'flow'}
            cx={frame.center.x}
            cy={frame.center.y}
            r={frame.inner - kFlowInset}
          />
          {draft.map((share) => (
            <Arc key={share.name} frame={frame} share={share} layers={layers} member={memberOf(share.name)} />
          ))}
          <Ticks frame={frame} shares={draft} layers={layers} />
          <Moved frame={frame} shares={shares} draft={draft} layers={layers} />
          {draft.map((share, i) => (
            <Chip key={share.name} frame={frame} share={share} layers={layers} number={i + 1} />
          ))}
          <g class="coordinator">
            <circle cx={top.x} cy={top.y} r={frame.labels ? 15 : 13} />
            <path d={`M${top.x - 6} ${top.y - 4}h12M${top.x - 6} ${top.y + 1}h12M${top.x - 6} ${top.y + 6}h7`} />
            {frame.labels && (
              <text x={top.x} y={frame.center.y - frame.outer - 14}>
                coordinator
              </text>
            )}
          </g>
          {frame.labels &&
            draft.map((share, i) => (
              <Label
                key={share.name}
                frame={frame}
                share={share}
                layers={layers}
                member={memberOf(share.name)}
                number={i + 1}
                brief={brief}
              />
            ))}
          {frame.labels &&
            !stale &&
            draft.map((share) => (
              <LinkLabel
                key={share.name}
                frame={frame}
                share={share}
                layers={layers}
                member={memberOf(share.name)}
                brief={brief}
              />
            ))}
          <Middle frame={frame} status={status} stale={stale} />
        </g>
        {draft.slice(0, -1).map((_, i) => (
          <BoundaryHandle
            key={i}
            frame={frame}
            shares={draft}
            boundary={i}
            layers={layers}
            locked={locked}
            onMove={onMove}
            onUndo={onUndo}
          />
        ))}
      </svg>
    </div>
  );
}
