// A boundary between two members' layers: a slider that pointers drag along the ring and arrow keys move.
import { useEffect, useRef, useState } from 'preact/hooks';
import { type Frame, angleOf, layerAt, pointAt } from './geometry';
import { type Share, boundaryForKey, boundaryLimits } from './shares';

interface Props {
  frame: Frame;
  shares: Share[];
  boundary: number; // between shares `boundary` and `boundary + 1`
  layers: number;
  locked: boolean;
  onMove: (boundary: number, place: number) => void;
  onUndo: () => void;
}

export function BoundaryHandle({ frame, shares, boundary, layers, locked, onMove, onUndo }: Props) {
  const handle = useRef<SVGGElement>(null);
  const [held, setHeld] = useState(false);
  const before = shares[boundary]!;
  const after = shares[boundary + 1]!;
  const { min, max } = boundaryLimits(shares, boundary);
  const angle = angleOf(after.first, layers);
  const [from, to] = [pointAt(frame.center, frame.inner - 4, angle), pointAt(frame.center, frame.outer + 8, angle)];
  const knob = pointAt(frame.center, frame.outer + 8, angle);

  // A finger on the handle drags it and does not scroll the page. The style touch-action does not reach into a drawing.
  useEffect(() => {
    const element = handle.current!;
    const hold = (event: TouchEvent) => event.cancelable && event.preventDefault();
    element.addEventListener('touchstart', hold, { passive: false });
    return () => element.removeEventListener('touchstart', hold);
  }, []);
  const onPointerDown = (event: PointerEvent) => {
    if (locked || event.button !== 0) return;
    event.preventDefault();
    handle.current!.setPointerCapture(event.pointerId);
    handle.current!.focus();
    setHeld(true);
  };
  const onPointerMove = (event: PointerEvent) => {
    if (!held) return;
    const box = handle.current!.ownerSVGElement!.getBoundingClientRect();
    const scale = frame.width / box.width;
    const point = { x: (event.clientX - box.left) * scale, y: (event.clientY - box.top) * scale };
    const place = Math.round(layerAt(frame.center, point, layers));
    // A pointer that slips over the gap at the top does not throw the boundary to the other end.
    if (place !== after.first && Math.abs(place - after.first) < layers * 0.6) onMove(boundary, place);
  };
  const onKeyDown = (event: KeyboardEvent) => {
    if (locked) return;
    if (event.key === 'Escape') return onUndo();
    const place = boundaryForKey(shares, boundary, event.key);
    if (place === null) return;
    event.preventDefault();
    if (place !== after.first) onMove(boundary, place);
  };
  return (
    <g
      ref={handle}
      class={held ? 'boundary held' : 'boundary'}
      role="slider"
      tabindex={0}
      aria-label={`Boundary between ${before.name} and ${after.name}`}
      aria-valuemin={min}
      aria-valuemax={max}
      aria-valuenow={after.first}
      aria-valuetext={`${before.name} has layers ${before.first} to ${before.last}, ${after.name} layers ${after.first} to ${after.last}`}
      aria-disabled={locked}
      onPointerDown={onPointerDown}
      onPointerMove={onPointerMove}
      onPointerUp={() => setHeld(false)}
      onPointerCancel={() => setHeld(false)}
      onLostPointerCapture={() => setHeld(false)}
      onKeyDown={onKeyDown}
    >
      <circle class="boundary-reach" cx={knob.x} cy={knob.y} r="22" />
      <line class="boundary-reach-line" x1={from.x} y1={from.y} x2={to.x} y2={to.y} />
      <line class="boundary-line" x1={from.x} y1={from.y} x2={to.x} y2={to.y} />
      <circle class="boundary-knob" cx={knob.x} cy={knob.y} r="9" />
      <path class="boundary-grip" d={`M${knob.x - 3} ${knob.y - 2.5}h6M${knob.x - 3} ${knob.y + 2.5}h6`} />
    </g>
  );
}
