const LOOPBACK = /^(?:localhost|127(?:\.\d+){3}|\[::1\])$/;

/**
 * The address without a slash at its end; null for anything but https, except on this machine: tokens would
 * be readable on the way.
 */
export function safeAddress(text: string): string | null {
  const url = URL.canParse(text) ? new URL(text) : null;
  const isSafe = url?.protocol === 'https:' || (url?.protocol === 'http:' && LOOPBACK.test(url.hostname));
  return url && isSafe ? url.href.replace(/\/+$/, '') : null;
}
