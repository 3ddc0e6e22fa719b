// The ring as a circle. Angles are in degrees, clockwise from the top; the coordinator sits in the gap at the top.
import type { Share } from './shares';

export interface Point {
  x: number;
  y: number;
}

// Where things lie, in the drawing's own units.
export interface Frame {
  width: number;
  height: number;
  center: Point;
  outer: number;
  inner: number;
  labels: boolean; // room for words outside of the ring
}

export const kGap = 36; // degrees that the coordinator takes

export function pointAt(center: Point, radius: number, angle: number): Point {
  const radians = ((angle - 90) * Math.PI) / 180;
  return { x: center.x + radius * Math.cos(radians), y: center.y + radius * Math.sin(radians) };
}

// Where layer `layer` begins; `layers` is the end of the last one.
export function angleOf(layer: number, layers: number): number {
  return kGap / 2 + ((360 - kGap) * layer) / layers;
}

// The boundary between layers that is nearest to a point, as a number of layers before it, with a fraction. A point in
// the gap belongs to the nearer end.
export function layerAt(center: Point, point: Point, layers: number): number {
  const degrees = (Math.atan2(point.y - center.y, point.x - center.x) * 180) / Math.PI + 90;
  const angle = (degrees + 360) % 360;
  return Math.min(Math.max(((angle - kGap / 2) * layers) / (360 - kGap), 0), layers);
}

const near = (n: number): string => n.toFixed(2);

// The band between two radii from angle `from` to angle `to`.
export function bandPath(center: Point, inner: number, outer: number, from: number, to: number): string {
  const sweep = Math.max(to - from, 0);
  const large = sweep > 180 ? 1 : 0;
  const [a, b] = [pointAt(center, outer, from), pointAt(center, outer, to)];
  const [c, d] = [pointAt(center, inner, to), pointAt(center, inner, from)];
  return (
    `M${near(a.x)} ${near(a.y)}A${near(outer)} ${near(outer)} 0 ${large} 1 ${near(b.x)} ${near(b.y)}` +
    `L${near(c.x)} ${near(c.y)}A${near(inner)} ${near(inner)} 0 ${large} 0 ${near(d.x)} ${near(d.y)}Z`
  );
}

// An arc without width.
export function arcPath(center: Point, radius: number, from: number, to: number): string {
  const [a, b] = [pointAt(center, radius, from), pointAt(center, radius, to)];
  const large = to - from > 180 ? 1 : 0;
  return `M${near(a.x)} ${near(a.y)}A${near(radius)} ${near(radius)} 0 ${large} 1 ${near(b.x)} ${near(b.y)}`;
}

// A share as an arc. Neighbors keep `space` degrees between them.
export function shareAngles(share: Share, layers: number, space: number): { from: number; to: number; middle: number } {
  const from = angleOf(share.first, layers);
  const to = angleOf(share.last + 1, layers);
  const half = Math.min(space / 2, (to - from) / 4);
  return { from: from + half, to: to - half, middle: (from + to) / 2 };
}

// How text at an angle is anchored so that it grows away from the ring.
export function anchorAt(angle: number): 'start' | 'middle' | 'end' {
  const turn = ((angle % 360) + 360) % 360;
  if (turn < 12 || turn > 348 || (turn > 168 && turn < 192)) return 'middle';
  return turn < 180 ? 'start' : 'end';
}

// How far from the middle a box of `width` by `height` has its center at an angle, so that all of it lies inside of a
// circle of `radius`.
export function insetRadius(radius: number, angle: number, width: number, height: number): number {
  const radians = ((angle - 90) * Math.PI) / 180;
  const [x, y] = [Math.abs(Math.cos(radians)), Math.abs(Math.sin(radians))];
  // The farthest corner lies at (r x + width / 2, r y + height / 2).
  const along = (x * width + y * height) / 2;
  const corner = (width * width + height * height) / 4;
  return Math.max(-along + Math.sqrt(Math.max(along * along + radius * radius - corner, 0)), 0);
}
