import { bytes, milliseconds, percent, perSecond, plural, rate, stepTime } from '../lib/format';
import { type Change, type ClusterStatus, type Member, layersInWords, stateInWords } from './cluster';
import { hueClass } from './hues';

interface Props {
  status: ClusterStatus;
  rowRates: Record<string, number>;
  stale: string; // the time of the last news where no more come
  locked: boolean;
  onChange: (change: Change) => void;
  onAdd: (name: string) => void;
}

function MemoryBar({ member }: { member: Member }) {
  const { memory_bytes: all, weight_bytes: weights, kv_bytes: kv } = member;
  const share = (n: number) => `${all > 0 ? Math.min((n / all) * 100, 100) : 0}%`;
  const limit = all > 0 ? ` of ${bytes(all)}` : '';
  const words = `${bytes(weights)} of weights and ${bytes(kv)} of KV pages${limit}`;
  return (
    <div class="meter-row">
      <div class="meter" role="img" aria-label={`Memory: ${words}`}>
        <span class="meter-weights" style={{ width: share(weights) }} />
        <span class="meter-kv" style={{ width: share(kv) }} />
      </div>
      <small>
        {bytes(weights)} weights + {bytes(kv)} KV{limit}
      </small>
    </div>
  );
}

function Fact({ name, value }: { name: string; value: string }) {
  return (
    <div>
      <dt>{name}</dt>
      <dd>{value}</dd>
    </div>
  );
}

function Buttons({ member, locked, onChange, onAdd }: Omit<Props, 'status' | 'rowRates' | 'stale'> & { member: Member }) {
  const { name } = member;
  if (member.state === 'drained') {
    return (
      <button type="button" disabled={locked} onClick={() => onChange({ kind: 'undrain', worker: name })}>
        Undrain<span class="off-screen"> {name}</span>
      </button>
    );
  }
  return (
    <>
      {member.state === 'idle' && (
        <button type="button" disabled={locked} onClick={() => onAdd(name)}>
          Give layers<span class="off-screen"> to {name}</span>
        </button>
      )}
      {member.state !== 'left_out' && (
        <button type="button" disabled={locked} onClick={() => onChange({ kind: 'drain', worker: name })}>
          Drain<span class="off-screen"> {name}</span>
        </button>
      )}
    </>
  );
}

// Why it has its layers, or none, and what was measured.
function Reason({ member }: { member: Member }) {
  const { measured } = member;
  if (!measured.why && measured.memory_bytes_per_second === 0) return null;
  return (
    <details class="reason">
      <summary>{member.layers ? 'Why these layers' : 'Why no layers'}</summary>
      {measured.why && <p>{measured.why}.</p>}
      <dl class="facts">
        <Fact name="Memory" value={rate(measured.memory_bytes_per_second)} />
        <Fact name="Operations" value={`${perSecond(measured.operations_per_second / 1e9)} G/s`} />
        <Fact name="Disk" value={rate(measured.disk_bytes_per_second)} />
      </dl>
      <ul class="measured-links">
        {measured.links.map((link) => (
          <li key={link.to}>
            to <strong>{link.to}</strong>:{' '}
            {link.failure
              ? `not reached: ${link.failure}`
              : `${milliseconds(link.round_trip_ms)}, ${rate(link.bytes_per_second)}`}
          </li>
        ))}
      </ul>
    </details>
  );
}

function Card({
  member,
  number,
  rows,
  stale,
  ...rest
}: Omit<Props, 'status' | 'rowRates'> & { member: Member; number: number; rows?: number }) {
  const machine = [
    member.host,
    member.isa,
    member.threads > 0 ? plural(member.threads, 'thread') : '',
    member.address,
    member.weights_room_bytes > 0 ? `room for ${bytes(member.weights_room_bytes)} of weights on disk` : '',
  ].filter(Boolean);
  return (
    <li class={`card member ${member.layers ? hueClass(member.name) : 'without'}`} data-member={member.name}>
      <div class="card-head">
        <span class="member-number" aria-hidden="true">
          {member.layers ? number : '–'}
        </span>
        <h3 title={member.name}>{member.name}</h3>
        <span class={`state state-${member.state}`}>{stateInWords(member, stale)}</span>
      </div>
      <p class="machine">{machine.join(' · ')}</p>
      <MemoryBar member={member} />
      {member.layers && (
        <dl class="facts">
          <Fact name="Layers" value={layersInWords(member.layers).replace(/^layers? /, '')} />
          <Fact name="Busy" value={percent(member.busy)} />
          <Fact name="Step" value={stepTime(member.step_ms)} />
          <Fact name="Rows" value={rows === undefined ? '–' : `${perSecond(rows)}/s`} />
        </dl>
      )}
      {member.sent && (
        <p class="link">
          sends to <strong>{member.sent.to}</strong>: {rate(member.sent.bytes_per_second)}
          {member.sent.latency_ms !== null && `, latency ${milliseconds(member.sent.latency_ms)}`}
        </p>
      )}
      <Reason member={member} />
      <div class="row">
        <Buttons member={member} {...rest} />
      </div>
    </li>
  );
}

export function MemberCards({ status, rowRates, ...rest }: Props) {
  return (
    <ul class="members">
      {status.members.map((member, i) => (
        <Card key={member.name} member={member} number={i + 1} rows={rowRates[member.name]} {...rest} />
      ))}
    </ul>
  );
}
