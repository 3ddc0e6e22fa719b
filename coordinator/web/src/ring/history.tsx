import { useState } from 'preact/hooks';
import { clock, count, milliseconds } from '../lib/format';
import type { HistoryEntry } from './cluster';

const kShown = 4; // the newest; the others are shown when they are asked for

export function History({ entries }: { entries: HistoryEntry[] }) {
  const [all, setAll] = useState(false);
  const shown = [...entries].reverse().slice(0, all ? entries.length : kShown);
  return (
    <section class="card" aria-label="Plans so far">
      <div class="card-head">
        <h2>Plans so far</h2>
        {entries.length > kShown && (
          <button type="button" class="small" aria-expanded={all} onClick={() => setAll(!all)}>
            {all ? 'Show the newest' : `Show all ${entries.length}`}
          </button>
        )}
      </div>
      {entries.length === 0 ? (
        <p class="hint">There was no plan yet.</p>
      ) : (
        <div class="wide" tabIndex={0} role="group" aria-label="Table of plans">
          <table class="history">
            <thead>
              <tr>
                <th>Plan</th>
                <th>Since</th>
                <th>Layers</th>
                <th class="to-right">Took</th>
                <th class="to-right">Pause</th>
                <th class="to-right">Pages</th>
                <th>Result</th>
              </tr>
            </thead>
            <tbody>
              {shown.map((entry) => (
                <tr key={`${entry.plan}-${entry.at}`} class={entry.result === 'serving' ? undefined : 'failed'}>
                  <td>{entry.plan}</td>
                  <td>{clock(entry.at)}</td>
                  <td class="ranges-cell">{entry.ranges.replaceAll(',', ', ')}</td>
                  <td class="to-right">{milliseconds(entry.took_ms)}</td>
                  <td class="to-right">{milliseconds(entry.paused_ms ? entry.paused_ms : null)}</td>
                  <td class="to-right">{count(entry.pages_moved)}</td>
                  <td>{entry.result === 'serving' ? 'served' : entry.result}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
    </section>
  );
}
