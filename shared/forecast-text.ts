import { duration, milliseconds, plural } from './format.ts';
import type { Forecast } from './protocol/change-operations.ts';

const wait = (ms: number): string => (ms < 60_000 ? milliseconds(ms) : duration(ms / 1000));

const MODES: Record<string, string> = {
  AccessExclusiveLock: 'Nobody can read or write',
  ExclusiveLock: 'Nobody can write to',
};

/** How long a lock of a change would have waited in `main`, in one line. */
export function forecastText({ schema, name, mode, wait_ms, worst, quietest, ...seen }: Forecast): string {
  const blocks = `${MODES[mode] ?? 'Nobody can write to'} ${schema}.${name} while its lock waits and is held.`;
  const rests = `by samples of ${plural(seen.rests_on_days, 'day')}`;
  if (wait_ms.p95 === 0 && worst.wait_ms.p95 === 0) return `${blocks} It would hardly have waited, ${rests}.`;
  const at = ({ days, hour }: Forecast['worst']) =>
    `${days === 'weekend' ? 'on weekends' : 'on weekdays'} at ${String(hour).padStart(2, '0')}:00 UTC`;
  const behind = seen.behind.filter(Boolean).slice(0, 3).join(', ');
  return [
    `${blocks} It would have waited for up to ${wait(worst.wait_ms.p95)} (95 %) ${at(worst)}`,
    behind && ` behind ${behind}`,
    `, with up to ${plural(seen.waiting_sessions, 'session')} queued behind it`,
    `; ${at(quietest)} for up to ${wait(quietest.wait_ms.p95)}, ${rests}.`,
  ]
    .filter(Boolean)
    .join('');
}
