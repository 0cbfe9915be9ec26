import './sign-in.css';
import { useMutation } from '@tanstack/react-query';
import type { ReactNode } from 'react';
import { Button } from '../../components/button.tsx';
import { ErrorNote } from '../../components/feedback.tsx';
import { Field } from '../../components/field.tsx';
import type { Step } from './steps.ts';

interface StepFormProps {
  /** Does the step with the values of the form, by the names of its fields. */
  submit: (value: (name: string) => string) => Promise<Step>;
  go: (step: Step) => void;
  action: string;
  children: ReactNode;
  /** Other ways to sign in. */
  more?: ReactNode;
}

/** A step of the sign-in that the gateway decides about. */
export function StepForm({ submit, go, action, children, more }: StepFormProps) {
  const attempt = useMutation({
    mutationFn: (form: HTMLFormElement) => {
      const values = new FormData(form);
      return submit((name) => String(values.get(name) ?? ''));
    },
    onSuccess: go,
  });
  return (
    <form
      className="stack"
      onSubmit={(event) => {
        event.preventDefault();
        if (!attempt.isPending) attempt.mutate(event.currentTarget);
      }}
    >
      {attempt.isError && <ErrorNote error={attempt.error} />}
      {children}
      <Button type="submit" look="primary" className="wide" busy={attempt.isPending}>
        {action}
      </Button>
      {more && <div className="row ways">{more}</div>}
    </form>
  );
}

export const Way = ({ to, go, children }: { to: Step; go: (step: Step) => void; children: ReactNode }) => (
  <Button look="bare" compact onClick={() => go(to)}>
    {children}
  </Button>
);

export const BackToSignIn = ({ go }: { go: (step: Step) => void }) => (
  <Way go={go} to={{ name: 'email' }}>
    Back to the sign-in
  </Way>
);

export const NewPasswordField = ({ label = 'Password' }: { label?: string }) => (
  <Field
    label={label}
    hint="At least 8 characters."
    name="password"
    type="password"
    autoComplete="new-password"
    minLength={8}
    required
  />
);

export const CodeField = ({ label = 'Code' }: { label?: string }) => (
  <Field
    label={label}
    className="code"
    name="code"
    inputMode="numeric"
    autoComplete="one-time-code"
    pattern="[0-9]{6}"
    maxLength={6}
    title="Six digits"
    required
    autoFocus
  />
);

export const PasswordField = ({ label = 'Password' }: { label?: string }) => (
  <Field label={label} name="password" type="password" autoComplete="current-password" required autoFocus />
);

/** Of a second factor, or of the owners of a team. */
export const RecoveryCodeField = () => (
  <Field
    label="Recovery code"
    name="code"
    className="mono"
    autoComplete="off"
    placeholder="xxxx-xxxx-xxxx-xxxx"
    required
    autoFocus
  />
);
