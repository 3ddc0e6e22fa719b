import { describe, expect, it } from 'vitest';
import { anchorAt, angleOf, arcPath, bandPath, insetRadius, kGap, layerAt, pointAt, shareAngles } from './geometry';

const center = { x: 100, y: 50 };

describe('the ring', () => {
  it('starts and ends beside the coordinator at the top', () => {
    expect(angleOf(0, 16)).toBe(kGap / 2);
    expect(angleOf(16, 16)).toBe(360 - kGap / 2);
    expect(angleOf(8, 16)).toBe(180);
    const top = pointAt(center, 10, 0);
    expect(top.x).toBeCloseTo(100);
    expect(top.y).toBeCloseTo(40);
  });

  it('finds the boundary under a point, at any distance from the middle', () => {
    for (const layers of [1, 16, 64]) {
      for (let layer = 0; layer <= layers; layer++) {
        for (const radius of [5, 200]) {
          expect(layerAt(center, pointAt(center, radius, angleOf(layer, layers)), layers)).toBeCloseTo(layer, 6);
        }
      }
    }
  });

  it('takes a point in the gap for the nearer end', () => {
    expect(layerAt(center, pointAt(center, 9, 3), 16)).toBe(0);
    expect(layerAt(center, pointAt(center, 9, 357), 16)).toBe(16);
  });

  it('keeps neighbors apart, and a narrow share visible', () => {
    const wide = shareAngles({ name: 'a', first: 0, last: 7 }, 16, 2);
    expect(wide.from).toBe(angleOf(0, 16) + 1);
    expect(wide.to).toBe(angleOf(8, 16) - 1);
    const narrow = shareAngles({ name: 'a', first: 3, last: 3 }, 1000, 2);
    expect(narrow.to).toBeGreaterThan(narrow.from);
  });

  it('draws a large arc as one', () => {
    expect(bandPath(center, 10, 20, 10, 100)).toContain('A20.00 20.00 0 0 1');
    expect(bandPath(center, 10, 20, 10, 300)).toContain('A20.00 20.00 0 1 1');
    expect(arcPath(center, 10, 0, 270)).toContain('A10.00 10.00 0 1 1');
  });

  it('lets words grow away from it', () => {
    expect([0, 90, 180, 270, 359].map(anchorAt)).toEqual(['middle', 'start', 'middle', 'end', 'middle']);
  });
});

it('keeps a box inside of a circle, and as near to it as it goes', () => {
  for (let angle = 0; angle < 360; angle += 15) {
    const radius = insetRadius(120, angle, 50, 28);
    const { x, y } = pointAt({ x: 0, y: 0 }, radius, angle);
    const corner = Math.hypot(Math.abs(x) + 25, Math.abs(y) + 14);
    expect(corner).toBeCloseTo(120, 6);
  }
});
