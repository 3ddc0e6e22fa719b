import { expect, test } from 'vitest';
import { render } from 'preact-render-to-string';
import { gainInWords, type Proposal } from './cluster';
import { ProposalCard } from './proposal_card';

const proposal: Proposal = {
  ranges: 'a=0-3,b=4-7',
  gain: 1.333,
  step_ms: 3,
  step_ms_now: 4,
  why: 'a step of 16 rows is expected every 3 ms instead of every 4 ms',
};

test('a proposal says what it gains', () => {
  expect(gainInWords(1.333)).toBe('33% more steps');
  const asked = render(<ProposalCard proposal={proposal} automatic={false} locked={false} onLook={() => {}} />);
  expect(asked).toContain('33% more steps');
  expect(asked).toContain('every 3.0 ms instead of every 4.0 ms');
  expect(asked).toContain('a=0-3, b=4-7');
  expect(asked).not.toContain('by itself');
  const automatic = render(<ProposalCard proposal={proposal} automatic={true} locked={true} onLook={() => {}} />);
  expect(automatic).toContain('by itself');
  expect(automatic).toContain('disabled');
});
