import { expect, it } from 'vitest';
import { bytes, middleCut, milliseconds, percent, plural } from './format';

it('shows bytes in units that stay short', () => {
  expect([0, 999, 999.6, 1000, 123456, 99_950_000, 8e9].map(bytes)).toEqual([
    '0 B',
    '999 B',
    '1.0 kB',
    '1.0 kB',
    '123 kB',
    '100 MB',
    '8.0 GB',
  ]);
  expect(bytes(NaN)).toBe('–');
});

it('shows times from microseconds to seconds', () => {
  expect([0.012, 0.21, 3.44, 123.4, 1234, 12345, null].map(milliseconds)).toEqual([
    '12 µs',
    '0.21 ms',
    '3.4 ms',
    '123 ms',
    '1.2 s',
    '12 s',
    '–',
  ]);
});

it('counts in words', () => {
  expect(plural(1, 'token')).toBe('1 token');
  expect(plural(12345, 'token')).toBe('12,345 tokens');
  expect(percent(1.7)).toBe('100%');
});

it('cuts long names in the middle', () => {
  expect(middleCut('amber', 18)).toBe('amber');
  const [a, b] = ['a', 'b'].map((end) => middleCut(`cedar-with-a-longhostname-rack12-${end}`, 18));
  expect(a).toHaveLength(18);
  expect(a!.startsWith('cedar')).toBe(true);
  expect(a!.endsWith('rack12-a')).toBe(true);
  expect(a).not.toBe(b);
});
