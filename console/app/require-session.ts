import { redirect, useNavigate, useRouterState } from '@tanstack/react-router';
import { useEffect } from 'react';
import { texts } from '../data/search.ts';
import { restoreSession, sessionStore } from '../data/session.ts';
import { useStore } from '../data/store.ts';

interface Address {
  href: string;
  search: Record<string, unknown>;
}

/** Leads to the sign-in, and back to this address after it. For `beforeLoad` of a route. */
export async function requireSession(address: Address): Promise<void> {
  const session = await restoreSession();
  if (session.state === 'signed_in') return;
  const { sign_in_error } = texts('sign_in_error')(address.search);
  throw redirect({
    to: '/sign-in',
    search: {
      ...(address.href !== '/' && { return_to: address.href }),
      ...(sign_in_error && { sign_in_error }),
    },
  });
}

/**
 * Leads to the sign-in when the session has ended, and back to this page after it.
 * @param returnsAlways also after a sign-out, for a page that another account of the same person may want
 */
export function useEndOfSession({ returnsAlways = false } = {}): void {
  const session = useStore(sessionStore);
  const navigate = useNavigate();
  const href = useRouterState({ select: ({ location }) => location.href });
  useEffect(() => {
    if (session.state !== 'signed_out') return;
    const search = session.reason === 'ended' || returnsAlways ? { return_to: href } : {};
    navigate({ to: '/sign-in', search, replace: true });
  }, [session, navigate, href, returnsAlways]);
}
