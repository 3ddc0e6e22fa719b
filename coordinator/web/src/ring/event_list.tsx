import type { ClusterEvent } from './events';
import { eventInWords, isTrouble, timeOf } from './events';
import { hueClass } from './hues';

const kinds: Record<string, string> = {
  joined: 'joined',
  left: 'left',
  lost: 'lost',
  drained: 'drained',
  undrained: 'undrained',
  left_out: 'left out',
  cut: 'cut off',
  back: 'back',
  ring_broken: 'ring broken',
  plan: 'plan',
  plan_failed: 'plan failed',
  recovered: 'recovered',
  cache: 'cache',
};

// The newest first.
export function EventList({ events }: { events: ClusterEvent[] }) {
  const now = Date.now() / 1000;
  return (
    <section class="card events" aria-label="Events">
      <h2>Events</h2>
      {events.length === 0 ? (
        <p class="hint">Nothing has happened yet.</p>
      ) : (
        <ol tabIndex={0} aria-label="Events, the newest first">
          {[...events].reverse().map((event) => (
            <li key={event.number} class={isTrouble(event) ? 'trouble' : undefined}>
              <p class="event-head">
                <time>{timeOf(event, now)}</time>
                <b>{kinds[event.kind] ?? event.kind}</b>
                {event.member && <span class={`name ${hueClass(event.member)}`}>{event.member}</span>}
              </p>
              <p>{eventInWords(event)}</p>
            </li>
          ))}
        </ol>
      )}
    </section>
  );
}
