import { createStore, useStore } from '../app/store.ts';
import { TEXT } from '../strings/common.ts';
import { Button } from './button.tsx';
import { Note } from './feedback.tsx';

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
          <Button
            compact
            look="bare"
            icon="close"
            aria-label={TEXT.actions.dismiss}
            onClick={() => dismiss(id)}
          />
        </div>
      </Note>
    ))}
  </div>
);
