// A plan that would be faster: what it gains, and a way to look at what it costs.
import { milliseconds } from '../lib/format';
import { type Proposal, gainInWords } from './cluster';

interface Props {
  proposal: Proposal;
  automatic: boolean; // the cluster makes it by itself
  locked: boolean;
  onLook: (ranges: string) => void;
}

export function ProposalCard({ proposal, automatic, locked, onLook }: Props) {
  return (
    <section class="card proposal" aria-label="A better plan">
      <h2>A better plan: {gainInWords(proposal.gain)}</h2>
      <p>
        A step is expected every {milliseconds(proposal.step_ms)} instead of every {milliseconds(proposal.step_ms_now)}.
      </p>
      <p class="machine">{proposal.ranges.replaceAll(',', ', ')}</p>
      {automatic && <p class="hint">The cluster makes it by itself when the last change is long enough ago.</p>}
      <div class="row">
        <button type="button" disabled={locked} onClick={() => onLook(proposal.ranges)}>
          See what it moves
        </button>
      </div>
    </section>
  );
}
