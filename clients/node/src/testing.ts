// Starts private Sluicegate services, for tests of applications.
import { type ChildProcess, spawn } from "node:child_process";
import { mkdtemp, open, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";

/** Options of `Service.start`. */
export interface ServiceOptions {
  /** Environment variables of the service. */
  env?: Record<string, string>;
  /** Path of the program. Default: the variable SLUICEGATE_PROGRAM, then `sluicegate` in PATH. */
  program?: string;
  /** Longest time of the start. Default: 30000. */
  startMs?: number;
}

const LISTENERS = ["http", "grpc", "admin"] as const;

/** A running `sluicegate serve` with a configuration of its own, on free ports of this machine. */
export class Service {
  #process: ChildProcess | undefined;
  #addresses: Record<string, string> = {};
  #log = "";

  private constructor(
    readonly folder: string,
    readonly config: string,
    readonly options: ServiceOptions,
  ) {}

  /** Starts a service. `config` is the text of a configuration file without `listen`. */
  static async start(config = "", options: ServiceOptions = {}): Promise<Service> {
    const folder = await mkdtemp(join(tmpdir(), "sluicegate-"));
    const service = new Service(folder, config, options);
    await service.start();
    return service;
  }

  /** Address of the HTTP API. It stays the same after a restart. */
  get url(): string {
    return `http://${this.#addresses.http}`;
  }

  /** All lines that the service has written to standard error. */
  get log(): string {
    return this.#log;
  }

  /** Starts the service again after `kill`, on the same ports. */
  async start(): Promise<void> {
    const path = join(this.folder, "sluicegate.yaml");
    const listen = Object.fromEntries(LISTENERS.map((name) => [name, this.#addresses[name] ?? "127.0.0.1:0"]));
    await writeFile(path, `listen: ${JSON.stringify(listen)}\n${this.config}`);
    const decisions = await open(join(this.folder, "decisions.log"), "a");
    const program = this.options.program ?? process.env.SLUICEGATE_PROGRAM ?? "sluicegate";
    const child = spawn(program, ["serve", "--config", path], {
      cwd: this.folder,
      env: { ...process.env, ...this.options.env },
      stdio: ["ignore", decisions.fd, "pipe"],
    });
    this.#process = child;
    try {
      await this.#untilListening(child);
    } finally {
      await decisions.close();
    }
  }

  #untilListening(child: ChildProcess): Promise<void> {
    return new Promise((resolve, reject) => {
      const addresses: Record<string, string> = {};
      const fail = (reason: string): void => {
        clearTimeout(timer);
        child.kill("SIGKILL");
        reject(new Error(`${reason}\n${this.#log}`));
      };
      const startMs = this.options.startMs ?? 30_000;
      const timer = setTimeout(() => fail(`sluicegate did not start within ${startMs} ms`), startMs);
      child.once("error", (error) => fail(`sluicegate can't be started (set SLUICEGATE_PROGRAM): ${error.message}`));
      child.once("exit", (code) => fail(`sluicegate ended with status ${code}`));
      if (child.stderr === null) return fail("sluicegate has no standard error");
      createInterface(child.stderr).on("line", (line) => {
        this.#log += `${line}\n`;
        let event: { message?: string; listener?: string; address?: string } = {};
        try {
          event = JSON.parse(line) as typeof event;
        } catch {
          // A line that is no event.
        }
        if (event.message === "listening" && event.listener && event.address) addresses[event.listener] = event.address;
        if (LISTENERS.every((name) => name in addresses)) {
          clearTimeout(timer);
          this.#addresses = addresses;
          resolve();
        }
      });
    });
  }

  /** Ends the process at once, as a crash does. */
  async kill(): Promise<void> {
    await this.#end("SIGKILL");
  }

  /** Stops the service and deletes its files. */
  async stop(): Promise<void> {
    await this.#end("SIGTERM");
    await rm(this.folder, { recursive: true, force: true });
  }

  async #end(signal: NodeJS.Signals): Promise<void> {
    const child = this.#process;
    this.#process = undefined;
    if (child === undefined || child.exitCode !== null || child.signalCode !== null) return;
    const ended = new Promise((resolve) => child.once("exit", resolve));
    child.kill(signal);
    await ended;
  }
}
