import type { UseQueryResult } from '@tanstack/react-query';
import type { ReactNode } from 'react';
import { JobError, ResponseError } from '../../client/response-error.ts';
import { plural } from '../../shared/format.ts';
import { isHostAway, isUnreachable, waitOf } from '../data/query-client.ts';
import { createStore, useStore } from '../data/store.ts';
import { Button } from './button.tsx';
import { Icon, type IconName } from './icon.tsx';

type Tone = 'info' | 'warn' | 'bad' | 'good' | 'main';

const ICONS: Record<Tone, IconName> = {
  info: 'info',
  warn: 'alert',
  bad: 'alert',
  good: 'check',
  main: 'branch',
};

export const Note = ({
  tone = 'info',
  children,
  live,
}: {
  tone?: Tone;
  children: ReactNode;
  live?: boolean;
}) => (
  <div className={`note ${tone}`} {...(live && { role: tone === 'bad' ? 'alert' : 'status' })}>
    <Icon name={ICONS[tone]} />
    <div className="grow">{children}</div>
  </div>
);

/** What went wrong and what to do next, for any error. */
function messageOf(error: unknown): string {
  if (isUnreachable(error))
    return 'The gateway does not respond. Check your connection; the page keeps trying.';
  if (error instanceof ResponseError) {
    const wait = waitOf(error);
    if (error.code === 'RATE_LIMITED' && wait !== null)
      return `Too many requests in this minute. Try again in ${plural(wait, 'second')}.`;
    return error.message;
  }
  if (error instanceof JobError || error instanceof Error) return error.message;
  return String(error);
}

interface Detail {
  path: string;
  message: string;
}

/** The entries of a VALIDATION_FAILED response. */
export const detailsOf = (error: unknown): Detail[] =>
  error instanceof ResponseError && Array.isArray(error.fields.details)
    ? (error.fields.details as Detail[])
    : [];

export function ErrorNote({ error, onRetry }: { error: unknown; onRetry?: () => void }) {
  const requestId = error instanceof ResponseError ? error.requestId : null;
  return (
    <Note tone="bad" live>
      <p>{messageOf(error)}</p>
      {detailsOf(error).map(({ path, message }) => (
        <p className="small" key={`${path} ${message}`}>
          <code>{path}</code> {message}
        </p>
      ))}
      {requestId !== null && (
        <p className="small quiet">
          Request ID <code>{requestId}</code>
        </p>
      )}
      {onRetry && (
        <div>
          <Button compact icon="refresh" onClick={onRetry}>
            Try again
          </Button>
        </div>
      )}
    </Note>
  );
}

/** Why something cannot be read. While the host is away, the page says it once, and reads again by itself. */
export const ReadError = ({ error, onRetry }: { error: unknown; onRetry: () => void }) =>
  isHostAway(error) ? null : <ErrorNote error={error} onRetry={onRetry} />;

export const Loading = ({ label = 'Loading' }: { label?: string }) => (
  <div className="skeleton" role="status" aria-label={label}>
    <i />
    <i />
    <i />
    <i />
  </div>
);

interface EmptyProps {
  icon: IconName;
  title: string;
  /** The heading of a page that consists of nothing else is its first one. */
  heading?: 'h1' | 'h2';
  children?: ReactNode;
}

export const Empty = ({ icon, title, heading: Heading = 'h2', children }: EmptyProps) => (
  <div className="empty">
    <Icon name={icon} />
    <Heading>{title}</Heading>
    {children}
  </div>
);

/** The three states of what a page reads. An error after a success leaves the last data on the page. */
export function Loaded<T>({
  query,
  children,
}: {
  query: UseQueryResult<T>;
  children: (data: T) => ReactNode;
}) {
  if (query.data !== undefined) {
    return (
      <>
        {query.isError && <ReadError error={query.error} onRetry={() => query.refetch()} />}
        {children(query.data)}
      </>
    );
  }
  if (query.isError) return <ReadError error={query.error} onRetry={() => query.refetch()} />;
  return (
    <>
      {query.failureReason !== null && !isHostAway(query.failureReason) && (
        <Note tone="warn">{messageOf(query.failureReason)}</Note>
      )}
      <Loading />
    </>
  );
}

interface Toast {
  id: number;
  text: string;
}

const toasts = createStore<readonly Toast[]>([]);
const SHOWN_MS = 6_000;
let lastId = 0;

const dismiss = (id: number) => toasts.set(toasts.get().filter((toast) => toast.id !== id));

/** Says that something is done. Errors stay next to what caused them instead. */
export function announce(text: string): void {
  lastId += 1;
  const id = lastId;
  toasts.set([...toasts.get(), { id, text }]);
  setTimeout(() => dismiss(id), SHOWN_MS);
}

export const Toasts = () => (
  <div className="toasts" role="status" aria-live="polite">
    {useStore(toasts).map(({ id, text }) => (
      <Note key={id} tone="good">
        <div className="row">
          <span className="grow">{text}</span>
          <Button compact look="bare" icon="close" aria-label="Dismiss" onClick={() => dismiss(id)} />
        </div>
      </Note>
    ))}
  </div>
);
