import { clock, count, milliseconds } from '../lib/format';
import type { HistoryEntry } from './cluster';

export function History({ entries }: { entries: HistoryEntry[] }) {
  return (
    <section class="card" aria-label="Plans so far">
      <h2>Plans so far</h2>
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
                <th class="to-right">Pages</th>
                <th>Result</th>
              </tr>
            </thead>
            <tbody>
              {[...entries].reverse().map((entry) => (
                <tr key={`${entry.plan}-${entry.at}`} class={entry.result === 'serving' ? undefined : 'failed'}>
                  <td>{entry.plan}</td>
                  <td>{clock(entry.at)}</td>
                  <td class="ranges-cell">{entry.ranges.replaceAll(',', ', ')}</td>
                  <td class="to-right">{milliseconds(entry.took_ms)}</td>
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
