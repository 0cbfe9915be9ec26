import type { Usage } from '../app/resources.ts';
import { STORAGE_TEXT } from '../strings/storage.ts';

const TONE: Record<Usage['storage_state'], string> = {
  normal: '',
  warning: 'warn',
  write_blocked: 'bad',
  closed: 'bad',
};

/** The used share of the storage quota. */
export const QuotaMeter = ({ usage }: { usage: Usage }) => (
  <div
    className={`meter ${TONE[usage.storage_state]}`}
    role="meter"
    aria-label={STORAGE_TEXT.quota}
    aria-valuenow={Math.min(100, Math.round(usage.usage_percent))}
    aria-valuetext={`${usage.usage_percent} %`}
  >
    <i style={{ width: `${Math.min(100, usage.usage_percent)}%` }} />
  </div>
);
