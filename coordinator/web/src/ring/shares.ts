// Who owns which layers, and what becomes of that when a boundary is dragged. Pure.
import type { Layers, Member } from './cluster';

// One member's layers. A list of shares is in ring order and tiles the layers from 0 on without a gap.
export interface Share {
  name: string;
  first: number;
  last: number;
}

export function sharesOf(members: Member[]): Share[] {
  return members
    .filter((member) => member.layers !== null)
    .map((member) => ({ name: member.name, ...member.layers! }))
    .sort((a, b) => a.first - b.first);
}

export const sameShares = (a: Share[], b: Share[]): boolean =>
  a.length === b.length &&
  a.every((share, i) => share.name === b[i]!.name && share.first === b[i]!.first && share.last === b[i]!.last);

const widthOf = (share: Share): number => share.last - share.first + 1;

// Boundary i lies between shares i and i + 1; its place is the first layer of share i + 1. The places that leave both
// of them a layer:
export function boundaryLimits(shares: Share[], boundary: number): { min: number; max: number } {
  return { min: shares[boundary]!.first + 1, max: shares[boundary + 1]!.last };
}

// The boundary at `place`, or as near to it as both neighbors keep a layer.
export function moveBoundary(shares: Share[], boundary: number, place: number): Share[] {
  const { min, max } = boundaryLimits(shares, boundary);
  const at = Math.min(Math.max(Math.round(place), min), max);
  return shares.map((share, i) => {
    if (i === boundary) return { ...share, last: at - 1 };
    if (i === boundary + 1) return { ...share, first: at };
    return share;
  });
}

// Where the boundary goes for a key; null if the key means nothing to it.
export function boundaryForKey(shares: Share[], boundary: number, key: string): number | null {
  const { min, max } = boundaryLimits(shares, boundary);
  const place = shares[boundary + 1]!.first;
  switch (key) {
    case 'ArrowRight':
    case 'ArrowUp':
      return Math.min(place + 1, max);
    case 'ArrowLeft':
    case 'ArrowDown':
      return Math.max(place - 1, min);
    case 'PageUp':
      return Math.min(place + 4, max);
    case 'PageDown':
      return Math.max(place - 4, min);
    case 'Home':
      return min;
    case 'End':
      return max;
    default:
      return null;
  }
}

// The member `name` takes the second half of the widest share. Null if no share has two layers.
export function addMember(shares: Share[], name: string): Share[] | null {
  let widest = -1;
  shares.forEach((share, i) => {
    if (widest < 0 || widthOf(share) > widthOf(shares[widest]!)) widest = i;
  });
  const share = shares[widest];
  if (!share || widthOf(share) < 2 || shares.some((other) => other.name === name)) return null;
  const middle = share.first + Math.ceil(widthOf(share) / 2);
  return [
    ...shares.slice(0, widest),
    { ...share, last: middle - 1 },
    { name, first: middle, last: share.last },
    ...shares.slice(widest + 1),
  ];
}

// The layers spread over the same members as evenly as they go.
export function evenShares(shares: Share[]): Share[] {
  const layers = (shares.at(-1)?.last ?? -1) + 1;
  let first = 0;
  return shares.map((share, i) => {
    const end = Math.round(((i + 1) * layers) / shares.length);
    const even = { name: share.name, first, last: end - 1 };
    first = end;
    return even;
  });
}

// "a=0-7,b=8-15", as `gyre resize` takes it.
export const rangesText = (shares: Share[]): string =>
  shares
    .map((share) => `${share.name}=${share.first === share.last ? share.first : `${share.first}-${share.last}`}`)
    .join(',');

// The shares that a text of ranges means, or a sentence that says what is wrong with it. A range without a name goes
// to the next of `names` that has none.
export function parseRanges(text: string, names: string[], layers: number): Share[] | string {
  const parts = text.split(/[,\s]+/).filter((part) => part !== '');
  const named = new Set(
    parts.map((part) => part.split('=')).flatMap(([name, range]) => (range === undefined ? [] : [name!])),
  );
  const unnamed = names.filter((name) => !named.has(name));
  const shares: Share[] = [];
  for (const part of parts) {
    const found = /^(?:([^=]+)=)?(?:(\d{1,6})(?:-(\d{1,6}))?|-)$/.exec(part);
    if (!found) return `“${part}” is no range. A range is written like ${names[0] ?? 'a'}=0-7.`;
    const [, given, first, last] = found;
    if (first === undefined) continue; // NAME=-: no layers
    const name = given ?? unnamed.shift();
    if (name === undefined) return 'There are more ranges than members.';
    if (!names.includes(name)) return `There is no member ${name} that can take layers.`;
    if (shares.some((share) => share.name === name)) return `${name} is named twice.`;
    shares.push({ name, first: Number(first), last: Number(last ?? first) });
  }
  shares.sort((a, b) => a.first - b.first);
  let next = 0;
  for (const share of shares) {
    if (share.first !== next || share.last < share.first)
      return `The ranges must cover layers 0 to ${layers - 1}, each once.`;
    next = share.last + 1;
  }
  if (next !== layers) return `The ranges must cover layers 0 to ${layers - 1}, each once.`;
  return shares;
}

// The layers that get another owner, neighbors with the same two owners together.
export function movedLayers(from: Share[], to: Share[]): { layers: Layers; from: string; to: string }[] {
  const ownerOf = (shares: Share[], layer: number) =>
    shares.find((share) => layer >= share.first && layer <= share.last)?.name ?? '';
  const layers = (to.at(-1)?.last ?? -1) + 1;
  const moves: { layers: Layers; from: string; to: string }[] = [];
  for (let layer = 0; layer < layers; layer++) {
    const [before, after] = [ownerOf(from, layer), ownerOf(to, layer)];
    if (before === after) continue;
    const last = moves.at(-1);
    if (last && last.layers.last === layer - 1 && last.from === before && last.to === after) last.layers.last = layer;
    else moves.push({ layers: { first: layer, last: layer }, from: before, to: after });
  }
  return moves;
}
