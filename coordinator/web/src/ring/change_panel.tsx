// What a change would move and what it costs, before anything happens.
import { useEffect, useRef, useState } from 'preact/hooks';
import { bytes } from '../lib/format';
import { sends, useGrow } from '../shell/text_field';
import { type Change, type ChangeReply, type Move, layersInWords } from './cluster';
import { hueClass } from './hues';
import { parseRanges, rangesText, type Share } from './shares';
import type { Planned } from './use_change';

function titleOf(change: Change): string {
  if (change.kind === 'drain') return `Drain ${change.worker}`;
  if (change.kind === 'undrain') return `Undrain ${change.worker}`;
  return 'Move layers';
}

function Name({ name }: { name: string }) {
  return <span class={`name ${hueClass(name)}`}>{name}</span>;
}

function MoveLine({ move }: { move: Move }) {
  const words = layersInWords(move.layers);
  const kv = move.kv_bytes > 0 ? ` and ${bytes(move.kv_bytes)} of KV pages` : '';
  return (
    <li>
      <strong>{words.charAt(0).toUpperCase() + words.slice(1)}</strong>
      {move.from && (
        <>
          {' '}
          from <Name name={move.from} />
        </>
      )}{' '}
      to <Name name={move.to} />: {bytes(move.weight_bytes)} of weights{kv}
    </li>
  );
}

function Cost({ preview }: { preview: ChangeReply }) {
  const tight = preview.members.filter((member) => !member.fits);
  return (
    <div class="cost">
      {preview.moves.length === 0 ? (
        <p>No layer moves.</p>
      ) : (
        <ul class="moves">
          {preview.moves.map((move, i) => (
            <MoveLine key={i} move={move} />
          ))}
        </ul>
      )}
      {tight.map((member) => (
        <p class="fault" key={member.name}>
          {member.name} does not hold this: it needs {bytes(member.weight_bytes + member.kv_bytes)} and has{' '}
          {bytes(member.memory_bytes)}.
        </p>
      ))}
      {preview.moves.length > 0 && tight.length === 0 && (
        <p class="hint">
          The old plan serves until the new one is loaded. Running answers pause for a moment and go on with the same
          text.
        </p>
      )}
    </div>
  );
}

// The other way to say where the boundaries go.
function RangesField({
  shares,
  names,
  layers,
  locked,
  onSketch,
}: {
  shares: Share[];
  names: string[];
  layers: number;
  locked: boolean;
  onSketch: (shares: Share[]) => void;
}) {
  const text = rangesText(shares).replaceAll(',', ', ');
  const [written, setWritten] = useState(text);
  const [fault, setFault] = useState('');
  const field = useGrow(written);
  useEffect(() => {
    setWritten(text);
    setFault('');
  }, [text]);
  const submit = (event: Event) => {
    event.preventDefault();
    const parsed = parseRanges(written, names, layers);
    if (typeof parsed === 'string') return setFault(parsed);
    setFault('');
    onSketch(parsed);
  };
  return (
    <form class="ranges" onSubmit={submit}>
      <label for="ranges">Layers of each member</label>
      <textarea
        id="ranges"
        ref={field}
        rows={1}
        value={written}
        spellcheck={false}
        autoComplete="off"
        disabled={locked}
        aria-describedby={fault ? 'ranges-fault' : undefined}
        onInput={(event) => setWritten(event.currentTarget.value)}
        onKeyDown={(event) => sends(event) && submit(event)}
      />
      {written !== text && (
        <div class="row">
          <button type="submit" disabled={locked}>
            Sketch these layers
          </button>
        </div>
      )}
      {fault && (
        <p class="fault" id="ranges-fault" role="alert">
          {fault}
        </p>
      )}
    </form>
  );
}

interface Props {
  planned: Planned;
  locked: boolean;
  shares: Share[];
  names: string[]; // of the members that can take layers
  layers: number;
  onEven: (() => void) | null;
}

export function ChangePanel({ planned, locked, shares, names, layers, onEven }: Props) {
  const { change, preview, fault, applying, outcome } = planned;
  const refused = preview?.members.some((member) => !member.fits) ?? false;
  const panel = useRef<HTMLElement>(null);
  // The button for it may be far down the page.
  useEffect(() => {
    if (!change || change.kind === 'resize') return;
    panel.current!.scrollIntoView({ block: 'nearest' });
    panel.current!.focus();
  }, [change]);
  return (
    <section ref={panel} class={change ? 'card change planned' : 'card change'} aria-label="Change of the plan" tabIndex={-1}>
      <h2>{change ? titleOf(change) : 'Change the plan'}</h2>
      {!change && (
        <p class="hint">
          {shares.length > 1
            ? 'Drag a boundary of the ring, or move it with the arrow keys. You see what it costs before anything happens.'
            : 'One member has all layers. Others join with gyre worker, and get layers here.'}
        </p>
      )}
      {(!change || change.kind === 'resize') && (
        <RangesField
          shares={planned.draft ?? shares}
          names={names}
          layers={layers}
          locked={locked}
          onSketch={planned.sketch}
        />
      )}
      {change && preview && <Cost preview={preview} />}
      {change && !preview && !fault && <p class="hint">Asking what this costs…</p>}
      <p class={fault ? 'fault' : 'outcome'} role="status">
        {fault || (applying ? 'The new plan is being loaded. The ring serves meanwhile.' : outcome)}
      </p>
      <div class="row">
        {change && (
          <button type="button" class="primary" disabled={locked || refused || !preview} onClick={planned.apply}>
            {applying ? 'Applying…' : 'Apply'}
          </button>
        )}
        {change && (
          <button type="button" disabled={applying} onClick={planned.undo}>
            Undo
          </button>
        )}
        {!change && onEven && (
          <button type="button" disabled={locked} onClick={onEven}>
            Spread evenly
          </button>
        )}
      </div>
    </section>
  );
}
