import { useState } from 'preact/hooks';
import { count, milliseconds, perSecond, plural } from '../lib/format';
import { CopyButton } from '../shell/copy_button';
import { Icon } from '../shell/icon';
import { useGrow } from '../shell/text_field';
import type { Stats, Turn } from './conversation';
import { Markdown } from './markdown';
import { type Call, argumentsInLines } from './tools';

interface Props {
  turn: Turn;
  writing: boolean;
  busy: boolean; // some answer of this conversation is being written
  onEdit: (text: string) => void;
  onAgain: () => void;
}

function Editor({ text, onSave, onCancel }: { text: string; onSave: (text: string) => void; onCancel: () => void }) {
  const [draft, setDraft] = useState(text);
  const field = useGrow(draft);
  const onKeyDown = (event: KeyboardEvent) => {
    if (event.key === 'Escape') onCancel();
    if (event.key === 'Enter' && (event.ctrlKey || event.metaKey) && draft.trim()) onSave(draft);
  };
  return (
    <form
      class="editor"
      onSubmit={(event) => {
        event.preventDefault();
        if (draft.trim()) onSave(draft);
      }}
    >
      <textarea
        ref={field}
        autoFocus
        value={draft}
        aria-label="Edit your message"
        onInput={(event) => setDraft(event.currentTarget.value)}
        onKeyDown={onKeyDown}
      />
      <div class="row end">
        <span class="hint">What follows is written again.</span>
        <button type="button" class="quiet" onClick={onCancel}>
          Cancel
        </button>
        <button type="submit" class="primary" disabled={!draft.trim()}>
          Send
        </button>
      </div>
    </form>
  );
}

export function statsInWords(stats: Stats): string {
  const parts = [plural(stats.answerTokens, 'token')];
  if (stats.tokensPerSecond !== null) parts.push(`${perSecond(stats.tokensPerSecond)} tokens/s`);
  parts.push(`first after ${milliseconds(stats.firstTokenMs)}`);
  if (stats.promptTokens > 0) {
    const cached = stats.cachedTokens > 0 ? `, ${count(stats.cachedTokens)} of them cached` : '';
    parts.push(`prompt ${count(stats.promptTokens)}${cached}`);
  }
  return parts.join(' · ');
}

function endingInWords(turn: Turn): string {
  if (turn.ending === 'length') return 'The answer reached the limit of tokens.';
  if (turn.ending === 'stopped') return 'You stopped this answer.';
  if (turn.ending === null) return 'The page was closed before this answer was complete.';
  return '';
}

function Reasoning({ text, open }: { text: string; open: boolean }) {
  return (
    <details class="reasoning">
      <summary>{open ? 'Thinking…' : 'What the model thought'}</summary>
      <div class="reasoning-text">{text}</div>
    </details>
  );
}

function CallView({ call }: { call: Call }) {
  return (
    <details class="call">
      <summary>
        Calls <code>{call.name}</code>
      </summary>
      <pre>{argumentsInLines(call)}</pre>
    </details>
  );
}

function Answer({ turn, writing, busy, onAgain }: Props) {
  const note = writing ? '' : endingInWords(turn);
  return (
    <article class={`turn answer ${writing ? 'writing' : ''}`} aria-label="Answer" aria-busy={writing}>
      {turn.reasoning && <Reasoning text={turn.reasoning} open={writing && !turn.content} />}
      {turn.content ? (
        <Markdown text={turn.content} growing={writing} />
      ) : (
        writing && !turn.reasoning && turn.calls.length === 0 && <p class="waiting">Waiting for the first token…</p>
      )}
      {turn.calls.map((call, i) => (
        <CallView key={i} call={call} />
      ))}
      {turn.calls.length > 0 && !writing && <p class="note">This page shows calls of tools and runs none.</p>}
      {turn.error && (
        <p class="fault" role="alert">
          {turn.error}
        </p>
      )}
      {note && <p class="note">{note}</p>}
      <div class="turn-foot">
        {turn.stats && <span class="stats">{statsInWords(turn.stats)}</span>}
        {!writing && (
          <span class="turn-tools">
            {turn.content && <CopyButton text={turn.content} what="the answer" />}
            <button
              type="button"
              class="quiet small"
              disabled={busy}
              onClick={onAgain}
              aria-label="Write this answer again"
            >
              <Icon name="again" />
              <span>Again</span>
            </button>
          </span>
        )}
      </div>
    </article>
  );
}

function Question({ turn, busy, onEdit }: Props) {
  const [editing, setEditing] = useState(false);
  if (editing) {
    const save = (text: string) => {
      setEditing(false);
      onEdit(text);
    };
    return (
      <article class="turn question" aria-label="Your message">
        <Editor text={turn.content} onSave={save} onCancel={() => setEditing(false)} />
      </article>
    );
  }
  return (
    <article class="turn question" aria-label="Your message">
      <div class="bubble">{turn.content}</div>
      <div class="turn-foot">
        <span class="turn-tools">
          <button
            type="button"
            class="quiet small"
            disabled={busy}
            onClick={() => setEditing(true)}
            aria-label="Edit your message"
          >
            <Icon name="edit" />
            <span>Edit</span>
          </button>
        </span>
      </div>
    </article>
  );
}

export function TurnView(props: Props) {
  return props.turn.role === 'user' ? <Question {...props} /> : <Answer {...props} />;
}
