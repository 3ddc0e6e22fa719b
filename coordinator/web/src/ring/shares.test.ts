import { describe, expect, it } from 'vitest';
import type { Member } from './cluster';
import {
  type Share,
  addMember,
  boundaryForKey,
  boundaryLimits,
  evenShares,
  moveBoundary,
  movedLayers,
  parseRanges,
  rangesText,
  sharesOf,
} from './shares';

const three: Share[] = [
  { name: 'a', first: 0, last: 4 },
  { name: 'b', first: 5, last: 10 },
  { name: 'c', first: 11, last: 15 },
];
const moved = (boundary: number, place: number) => rangesText(moveBoundary(three, boundary, place));

describe('a boundary', () => {
  it('moves layers between its two neighbors only', () => {
    expect(moved(0, 8)).toBe('a=0-7,b=8-10,c=11-15');
    expect(moved(1, 6)).toBe('a=0-4,b=5,c=6-15');
    expect(moved(0, 5)).toBe(rangesText(three));
  });

  it('stops where a neighbor would have no layer', () => {
    expect(moved(0, -3)).toBe('a=0,b=1-10,c=11-15');
    expect(moved(0, 99)).toBe('a=0-9,b=10,c=11-15');
    expect(boundaryLimits(three, 1)).toEqual({ min: 6, max: 15 });
  });

  it('follows the keys of a slider', () => {
    const keys = ['ArrowRight', 'ArrowUp', 'ArrowLeft', 'ArrowDown', 'PageUp', 'PageDown', 'Home', 'End', 'a', 'Tab'];
    expect(keys.map((key) => boundaryForKey(three, 0, key))).toEqual([6, 6, 4, 4, 9, 1, 1, 10, null, null]);
    const edge = moveBoundary(three, 0, 10);
    expect(boundaryForKey(edge, 0, 'ArrowRight')).toBe(10);
  });
});

describe('shares', () => {
  it('come from the members in the order of their layers', () => {
    const member = (name: string, layers: Member['layers']) => ({ name, layers }) as Member;
    const members = [member('idle', null), member('b', { first: 8, last: 15 }), member('a', { first: 0, last: 7 })];
    expect(rangesText(sharesOf(members))).toBe('a=0-7,b=8-15');
  });

  it('take in a member at the expense of the widest', () => {
    expect(rangesText(addMember(three, 'd')!)).toBe('a=0-4,b=5-7,d=8-10,c=11-15');
    expect(rangesText(addMember([{ name: 'a', first: 0, last: 2 }], 'd')!)).toBe('a=0-1,d=2');
    expect(addMember([{ name: 'a', first: 0, last: 0 }], 'd')).toBe(null);
    expect(addMember(three, 'a')).toBe(null);
  });

  it('spread evenly', () => {
    const uneven = moveBoundary(moveBoundary(three, 0, 1), 1, 2);
    expect(rangesText(evenShares(uneven))).toBe('a=0-4,b=5-10,c=11-15');
  });

  it('say which layers move', () => {
    expect(movedLayers(three, moveBoundary(three, 0, 8))).toEqual([
      { layers: { first: 5, last: 7 }, from: 'b', to: 'a' },
    ]);
    const swapped: Share[] = [
      { name: 'b', first: 0, last: 4 },
      { name: 'a', first: 5, last: 15 },
    ];
    expect(movedLayers(three, swapped)).toEqual([
      { layers: { first: 0, last: 4 }, from: 'a', to: 'b' },
      { layers: { first: 5, last: 10 }, from: 'b', to: 'a' },
      { layers: { first: 11, last: 15 }, from: 'c', to: 'a' },
    ]);
    expect(movedLayers(three, three)).toEqual([]);
  });
});

describe('a text of ranges', () => {
  const parse = (text: string) => {
    const parsed = parseRanges(text, ['a', 'b', 'c'], 16);
    return typeof parsed === 'string' ? parsed : rangesText(parsed);
  };

  it('is read as the command line reads it', () => {
    expect(parse('a=0-4,b=5-10,c=11-15')).toBe(rangesText(three));
    expect(parse('0-7, 8-15')).toBe('a=0-7,b=8-15');
    expect(parse('b=0-7,8-15')).toBe('b=0-7,a=8-15');
    expect(parse('b=8-15,a=0-7')).toBe('a=0-7,b=8-15');
    expect(parse('a=0-15,b=-')).toBe('a=0-15');
    expect(parse('0,1-14,15')).toBe('a=0,b=1-14,c=15');
  });

  it('is refused with a sentence', () => {
    expect(parse('a=0-7')).toContain('cover layers 0 to 15');
    expect(parse('a=0-8,b=8-15')).toContain('each once');
    expect(parse('a=7-0,b=8-15')).toContain('cover');
    expect(parse('d=0-15')).toContain('no member d');
    expect(parse('a=0-7,a=8-15')).toContain('twice');
    expect(parse('a=x')).toContain('no range');
    expect(parse('0-3,4-7,8-11,12-15')).toContain('more ranges');
    expect(parse('')).toContain('cover');
  });
});
