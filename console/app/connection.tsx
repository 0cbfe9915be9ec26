import { Note } from '../components/feedback.tsx';
import { TEXT } from '../strings/common.ts';
import { reachable } from './gateway.ts';
import { useStore } from './store.ts';

/** Says that the gateway does not respond, until a request reaches it again. */
export function Unreachable() {
  if (useStore(reachable)) return null;
  return (
    <div className="banner">
      <Note tone="warn" live>
        {TEXT.states.unreachableBanner}
      </Note>
    </div>
  );
}
