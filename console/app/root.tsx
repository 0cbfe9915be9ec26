import { createRootRoute, Outlet } from '@tanstack/react-router';
import { plural } from '../../shared/format.ts';
import { Note, Toasts } from '../components/feedback.tsx';
import { useNow } from '../components/time.tsx';
import { reachable } from '../data/gateway.ts';
import { refusedUntil } from '../data/refusals.ts';
import { useStore } from '../data/store.ts';
import { UnknownPage } from './problem-pages.tsx';

function Refused({ until }: { until: number }) {
  const seconds = Math.ceil((until - useNow()) / 1000);
  if (seconds <= 0) return null;
  // The seconds, spoken once each, would be all that a screen reader says.
  return (
    <Note tone="warn">
      <span aria-hidden="true">
        Too many requests in this minute. The page continues in {plural(seconds, 'second')}.
      </span>
      <span className="visually-hidden">
        Too many requests in this minute. The page continues automatically.
      </span>
    </Note>
  );
}

/** Says that the gateway does not respond, or not yet, until a request reaches it again. */
function Connection() {
  const isReachable = useStore(reachable);
  const until = useStore(refusedUntil);
  return (
    <div className="banner" role="status">
      {!isReachable && (
        <Note tone="warn">
          The gateway does not respond. The page keeps trying, and your unsaved changes stay here.
        </Note>
      )}
      {isReachable && until > Date.now() && <Refused until={until} />}
    </div>
  );
}

export const Route = createRootRoute({
  component: () => (
    <>
      <Outlet />
      <Connection />
      <Toasts />
    </>
  ),
  notFoundComponent: UnknownPage,
});
