// A change of the plan from its first sketch to its end: what it would cost (a dry run), applying it, what came of it.
import { useCallback, useEffect, useRef, useState } from 'preact/hooks';
import { explain, isAbort, postJson } from '../lib/api';
import { milliseconds, plural } from '../lib/format';
import { type Change, type ChangeReply, changeRequest, hasDryRun } from './cluster';
import { type Share, rangesText } from './shares';

export interface Planned {
  change: Change | null;
  draft: Share[] | null; // how the ring looks after a resize
  preview: ChangeReply | null;
  fault: string;
  applying: boolean;
  outcome: string; // what came of the last change
  sketch: (shares: Share[]) => void;
  propose: (change: Change) => void;
  undo: () => void;
  apply: () => void;
  run: (change: Change) => void; // at once, without a dry run
}

const kPreviewDelayMs = 180; // while a boundary is dragged, not every place is asked for

function outcomeOf(change: Change, reply: ChangeReply): string {
  const plan = reply.plan === null ? '' : ` Plan ${reply.plan} serves: ${reply.ranges.replaceAll(',', ', ')}.`;
  const cost =
    reply.took_ms > 0
      ? ` It took ${milliseconds(reply.took_ms)} and moved ${plural(reply.pages_moved, 'KV page')}.`
      : '';
  if (change.kind === 'drain') return `${change.worker} is drained.${plan}${cost}`;
  if (change.kind === 'undrain') return `${change.worker} is a member again and may get layers.`;
  return `${plan}${cost}`.trim();
}

export function useChange(planNumber: number | null): Planned {
  const [change, setChange] = useState<Change | null>(null);
  const [draft, setDraft] = useState<Share[] | null>(null);
  const [preview, setPreview] = useState<ChangeReply | null>(null);
  const [fault, setFault] = useState('');
  const [applying, setApplying] = useState(false);
  const [outcome, setOutcome] = useState('');
  const base = useRef(planNumber);

  const propose = useCallback((next: Change) => {
    setChange(next);
    setDraft(null);
    setFault('');
    setOutcome('');
    base.current = null;
  }, []);
  const sketch = useCallback((shares: Share[]) => {
    propose({ kind: 'resize', ranges: rangesText(shares) });
    setDraft(shares);
  }, []);
  const undo = useCallback(() => {
    setChange(null);
    setDraft(null);
    setPreview(null);
    setFault('');
  }, []);

  // A plan that somebody else made ends the sketch: its boundaries no longer mean what they meant.
  useEffect(() => {
    if (!change || applying) return;
    if (base.current === null) base.current = planNumber;
    if (base.current === planNumber) return;
    undo();
    setOutcome('The plan changed meanwhile, so your sketch is gone.');
  }, [change, planNumber, applying]);

  const asked = change ? JSON.stringify(changeRequest(change, true)) : '';
  useEffect(() => {
    setPreview(null);
    if (!change || !hasDryRun(change)) return;
    const abort = new AbortController();
    const timer = setTimeout(async () => {
      const { path, body } = changeRequest(change, true);
      try {
        setPreview(await postJson<ChangeReply>(path, body, abort.signal));
        setFault('');
      } catch (error) {
        if (!isAbort(error)) setFault(explain(error));
      }
    }, kPreviewDelayMs);
    return () => {
      clearTimeout(timer);
      abort.abort();
    };
  }, [asked]);

  const run = async (what: Change) => {
    if (applying) return;
    setApplying(true);
    setFault('');
    setOutcome('');
    try {
      const { path, body } = changeRequest(what, false);
      const reply = await postJson<ChangeReply>(path, body);
      undo();
      setOutcome(outcomeOf(what, reply));
    } catch (error) {
      setFault(explain(error));
    }
    setApplying(false);
  };
  const apply = () => void (change && run(change));
  return {
    change,
    draft,
    preview,
    fault,
    applying,
    outcome,
    sketch,
    propose,
    undo,
    apply,
    run: (what) => void run(what),
  };
}
