// Numbers as people read them.

const kUnits = ['B', 'kB', 'MB', 'GB', 'TB'];

// 1,000 based, as memory and links are sold.
export function bytes(n: number): string {
  if (!Number.isFinite(n) || n < 0) return '–';
  let unit = 0;
  while (n >= 999.5 && unit < kUnits.length - 1) {
    n /= 1000;
    unit++;
  }
  return `${unit === 0 || n >= 99.5 ? Math.round(n) : n.toFixed(1)} ${kUnits[unit]}`;
}

export const rate = (bytesPerSecond: number): string => `${bytes(bytesPerSecond)}/s`;

export function milliseconds(ms: number | null | undefined): string {
  if (ms === null || ms === undefined || !Number.isFinite(ms)) return '–';
  if (ms >= 10000) return `${(ms / 1000).toFixed(0)} s`;
  if (ms >= 1000) return `${(ms / 1000).toFixed(1)} s`;
  if (ms >= 100) return `${ms.toFixed(0)} ms`;
  if (ms >= 1) return `${ms.toFixed(1)} ms`;
  if (ms >= 0.1) return `${ms.toFixed(2)} ms`;
  return `${Math.round(ms * 1000)} µs`;
}

// A mean time of steps: 0 where there were none.
export const stepTime = (ms: number | undefined): string => milliseconds(ms ? ms : null);

export function count(n: number): string {
  return n.toLocaleString('en-US', { maximumFractionDigits: 0 });
}

export function perSecond(n: number): string {
  return n >= 100 ? n.toFixed(0) : n.toFixed(1);
}

export function percent(share: number): string {
  return `${Math.round(Math.min(Math.max(share, 0), 1) * 100)}%`;
}

export function plural(n: number, one: string, many = `${one}s`): string {
  return `${count(n)} ${n === 1 ? one : many}`;
}

// At most `limit` characters; what is left out is in the middle, as names of one rack differ at their end.
export function middleCut(text: string, limit: number): string {
  const letters = [...text];
  if (letters.length <= limit) return text;
  const end = Math.ceil((limit - 1) * 0.6);
  return `${letters.slice(0, limit - 1 - end).join('')}…${letters.slice(-end).join('')}`;
}

export function clock(unixSeconds: number): string {
  return new Date(unixSeconds * 1000).toLocaleTimeString('en-GB');
}
