#!/bin/sh
echo localhost:1
