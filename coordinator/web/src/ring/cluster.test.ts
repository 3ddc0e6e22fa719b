import { expect, it } from 'vitest';
import { type Member, changeRequest, hasDryRun, layersInWords, stateInWords } from './cluster';

it('asks for changes as the server takes them', () => {
  const resize = { kind: 'resize', ranges: 'a=0-7,b=8-15' } as const;
  expect(changeRequest(resize, true)).toEqual({
    path: '/v1/cluster/resize',
    body: { ranges: 'a=0-7,b=8-15', dry_run: true },
  });
  expect(changeRequest(resize, false).body).toEqual({ ranges: 'a=0-7,b=8-15' });
  expect(changeRequest({ kind: 'drain', worker: 'b' }, false)).toEqual({
    path: '/v1/cluster/drain',
    body: { worker: 'b' },
  });
  expect(hasDryRun({ kind: 'undrain', worker: 'b' })).toBe(false);
});

it('puts members into words', () => {
  expect(layersInWords({ first: 3, last: 3 })).toBe('layer 3');
  expect(layersInWords({ first: 0, last: 7 })).toBe('layers 0–7');
  const member = (state: string, why = '') => stateInWords({ state, why } as Member);
  expect(member('left_out', 'its link broke')).toBe('left out: its link broke');
  expect(member('idle')).toBe('has no layers');
  const before = (state: string) => stateInWords({ state, why: '' } as Member, '15:03:12');
  expect(['serving', 'idle', 'drained', 'left_out'].map(before)).toEqual([
    'served',
    'had no layers',
    'was drained',
    'was left out',
  ]);
});
