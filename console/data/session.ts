import { dataOf, ResponseError } from '../../client/response-error.ts';
import { api, forgetToken, renewToken, whenSessionEnds } from './gateway.ts';
import { queryClient } from './query-client.ts';
import type { Me } from './resources.ts';
import { createStore } from './store.ts';

export type Session =
  | { state: 'unknown' }
  | { state: 'signed_out'; reason: 'ended' | 'left' | null }
  | { state: 'signed_in'; me: Me };

export const sessionStore = createStore<Session>({ state: 'unknown' });

/** Staged changes of rows survive a reload and a new sign-in of the same person, but not a sign-out. */
export const STAGED_PREFIX = 'staged:';

/** Texts of SQL survive a new session of the same person, but not a sign-out either. */
export const DRAFTS_PREFIX = 'sql ';

function clearStaged(): void {
  for (const key of Object.keys(sessionStorage)) {
    if (key.startsWith(STAGED_PREFIX)) sessionStorage.removeItem(key);
  }
  for (const key of Object.keys(localStorage))
    if (key.startsWith(DRAFTS_PREFIX)) localStorage.removeItem(key);
}

whenSessionEnds(() => {
  queryClient.clear();
  sessionStore.set({ state: 'signed_out', reason: 'ended' });
});

/** Reads who is signed in, after a token has been issued. */
async function enter(): Promise<Session> {
  const me = await dataOf(api.GET('/api/v1/me'));
  const session: Session = { state: 'signed_in', me };
  sessionStore.set(session);
  return session;
}

/** The session that the cookie of an earlier page stands for. @throws while the gateway does not respond */
export async function restoreSession(): Promise<Session> {
  const known = sessionStore.get();
  if (known.state !== 'unknown') return known;
  if ((await renewToken()) !== null) return enter();
  const session: Session = { state: 'signed_out', reason: null };
  sessionStore.set(session);
  return session;
}

/** Completes a sign-in that has set the cookie. */
export async function enterWithCookie(): Promise<Session> {
  queryClient.clear();
  if ((await renewToken()) === null) throw new Error('The browser did not keep the cookie of the session.');
  return enter();
}

export async function signOut(): Promise<void> {
  try {
    await dataOf(api.POST('/api/v1/auth/logout', { body: {} }));
  } catch (error) {
    // Without a session there is nothing to end.
    if (!(error instanceof ResponseError) || error.status !== 401) throw error;
  }
  forgetToken();
  clearStaged();
  queryClient.clear();
  sessionStore.set({ state: 'signed_out', reason: 'left' });
}

/** Whether a role may change anything in projects at all. */
export const mayChange = (me: Me): boolean =>
  me.role !== 'viewer' && me.scopes.some((scope) => scope.endsWith(':write'));

export const mayAdminister = (me: Me): boolean => me.role === 'owner' || me.role === 'admin';
