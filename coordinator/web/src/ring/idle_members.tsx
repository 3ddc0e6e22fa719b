import { middleCut } from '../lib/format';
import { type Member, stateInWords } from './cluster';

// The members that are no part of the ring, below its picture.
export function IdleMembers({ members, stale }: { members: Member[]; stale: string }) {
  const idle = members.filter((member) => !member.layers);
  if (idle.length === 0) return null;
  return (
    <ul class="idle-members" aria-label="Members without layers">
      {idle.map((member) => (
        <li key={member.name} title={member.name}>
          <i aria-hidden="true" />
          <strong>{middleCut(member.name, 22)}</strong> <span>{stateInWords(member, stale)}</span>
        </li>
      ))}
    </ul>
  );
}
