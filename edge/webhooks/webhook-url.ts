import { destinationOf } from '../destination.ts';

const URL_MAX_LENGTH = 2048;

/**
 * Why a webhook may not have this URL; null if it may.
 * @param local the local stack, where loopback addresses and http are allowed
 */
export function refusalOfUrl(text: string, local: boolean): string | null {
  if (text.length > URL_MAX_LENGTH || !URL.canParse(text)) return 'Invalid URL.';
  const url = new URL(text);
  const destination = destinationOf(url);
  const isLoopback = local && destination === 'loopback';
  if (url.protocol !== 'https:' && !(isLoopback && url.protocol === 'http:')) return 'The URL must be https.';
  if (url.username !== '' || url.password !== '') return 'The URL must not contain a user name or password.';
  if (destination !== 'public' && !isLoopback) return 'The URL must not be a local or private address.';
  return null;
}
